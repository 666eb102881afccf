"""The kernel, by the doors through which containers have been left, and by those that lead to its whole machine."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.attacks.machine.conftest import ANSWER_S, Scene
from tests.support.sandboxes.conformance import text
from tests.support.sandboxes.serving import eventually

SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/kernel/hostname",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sysrq-trigger",
    "/proc/self/uid_map",
    "/proc/self/setgroups",
    "/proc/self/attr/current",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/rdma/release_agent",
    "/sys/fs/cgroup/devices/devices.allow",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
)
ESCAPES = (
    "mount -t cgroup -o rdma none /tmp",
    "mount -t proc none /tmp",
    "mount -o remount,rw /sys",
    "mount --bind / /tmp",
    "umount /proc/sys",
    "unshare -U -r true",
    "unshare -m true",
    "unshare -n true",
    "mknod /tmp/disk b 254 0 && cat /tmp/disk",
    "mknod /tmp/mem c 1 1 && cat /tmp/mem",
    "chroot / true",
    "chown 12345 /etc/motd",
    "cat /proc/kmsg",
    "cat /proc/kcore",
    "cat /dev/kmsg",
)


def core_pattern() -> str:
    return Path("/proc/sys/kernel/core_pattern").read_text()


async def test_kernel_settings_cannot_be_written(after_an_attack: Scene) -> None:
    before = core_pattern()
    for path in SETTINGS:
        written = await after_an_attack.attack(f"echo '|/tmp/x' > {path}; echo 1 > {path}", timeout_s=10)
        assert written.exit_code != 0, path
    assert core_pattern() == before


async def test_pressure_triggers_cannot_be_set(after_an_attack: Scene) -> None:
    """Each is the kernel's memory, that no limit counts, and its work for as long as it is set."""
    for name in ("cpu", "io", "memory"):
        assert (await after_an_attack.attack(f": > /proc/pressure/{name}", timeout_s=10)).exit_code != 0


async def test_escape_attempts_fail(after_an_attack: Scene) -> None:
    for command in ESCAPES:
        tried = await after_an_attack.attack(f"{command} > /dev/null", timeout_s=10)
        assert tried.exit_code != 0, command


async def test_forbidden_system_calls_do_no_harm(after_an_attack: Scene) -> None:
    assert (await after_an_attack.attacker.exec(["probe", "calls"], timeout_s=ANSWER_S)).exit_code == 0


async def test_crash_leaves_no_core_dump(after_an_attack: Scene) -> None:
    """Nor inside: neither the limit nor what the kernel does with a crash is the sandbox's to change."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = await asyncio.to_thread(pattern.read_text)
    await after_an_attack.attack("echo '|/tmp/x' > /proc/sys/kernel/core_pattern; echo /tmp/x > /proc/self/cwd")
    crashed = await after_an_attack.attack("cd /srv; ulimit -c unlimited; sh -c 'kill -SEGV $$'; echo $?; ulimit -Hc")
    assert text(crashed).split() == [str(128 + signal.SIGSEGV), "0"]
    assert await after_an_attack.attacker.walk("/srv") == []
    assert await asyncio.to_thread(pattern.read_text) == before


async def test_sandbox_cannot_set_the_clock(after_an_attack: Scene) -> None:
    before = time.time()
    await after_an_attack.attack("date -s @0; date -u 010100002001; hwclock -s")
    assert before <= time.time() < before + ANSWER_S
    assert before - 1 <= int(text(await after_an_attack.attack("date +%s"))) < before + ANSWER_S


@pytest.mark.parametrize("tree", ["/proc", "/sys"])
async def test_search_of_kernel_file_systems_ends(after_an_attack: Scene, tree: str) -> None:
    """By itself, or with its time: nothing in there holds whoever reads it."""
    await after_an_attack.attack(f"grep -r shadow {tree} > /dev/null 2>&1", timeout_s=5)
    await after_an_attack.attack(f"find {tree} -name '*shadow*' > /dev/null 2>&1", timeout_s=20)
    assert await eventually(lambda: after_an_attack.living() == [])

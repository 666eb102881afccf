"""The kernel, by the doors through which containers have been left, and by those that lead to its whole machine."""

import time
from pathlib import Path

import pytest

from tests.attacks.machine.conftest import ANSWER_S, Scene
from tests.sandboxes.conformance import text

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


async def test_no_setting_of_the_kernel_is_the_sandboxs(after_an_attack: Scene) -> None:
    before = core_pattern()
    for path in SETTINGS:
        written = await after_an_attack.attack(f"echo '|/tmp/x' > {path}; echo 1 > {path}", timeout_s=10)
        assert written.exit_code != 0, path
    assert core_pattern() == before


async def test_no_door_is_open(after_an_attack: Scene) -> None:
    for command in ESCAPES:
        tried = await after_an_attack.attack(f"{command} > /dev/null", timeout_s=10)
        assert tried.exit_code != 0, command


async def test_no_call_that_is_forbidden_does_harm(after_an_attack: Scene) -> None:
    assert (await after_an_attack.attacker.exec(["probe", "calls"], timeout_s=ANSWER_S)).exit_code == 0


async def test_a_crash_leaves_nothing_outside(after_an_attack: Scene) -> None:
    await after_an_attack.attack("ulimit -c unlimited; echo '|/tmp/x' > /proc/sys/kernel/core_pattern")
    crashed = await after_an_attack.attack("cd /tmp; ulimit -c 0; sh -c 'kill -SEGV $$'; ls /tmp")
    assert b"core" not in crashed.stdout.head


async def test_the_clock_is_the_machines(after_an_attack: Scene) -> None:
    before = time.time()
    await after_an_attack.attack("date -s @0; date -u 010100002001; hwclock -s")
    assert before <= time.time() < before + ANSWER_S
    assert before - 1 <= int(text(await after_an_attack.attack("date +%s"))) < before + ANSWER_S


@pytest.mark.parametrize("tree", ["/proc", "/sys"])
async def test_a_search_of_the_kernels_own_trees_ends(after_an_attack: Scene, tree: str) -> None:
    search = await after_an_attack.attack(f"grep -r shadow {tree} > /dev/null 2>&1", timeout_s=5)
    assert search.timed_out or search.exit_code is not None
    by_name = await after_an_attack.attack(f"find {tree} -name '*shadow*' | wc -l", timeout_s=20)
    assert by_name.timed_out or by_name.exit_code == 0

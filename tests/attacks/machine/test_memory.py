"""All the memory there is, held by what counts as memory and by what looks as if it did not."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from sandboxes import SandboxGone
from tests.attacks.machine.conftest import ANSWER_S, SMALL, Scene
from tests.support.sandboxes.conformance import text

MIB = 2**20
PAGE_KIB = 4
KILLED = 128 + 9


def held_by_sockets_kib(kind: str) -> int:
    """On the whole machine."""
    (line,) = (row for row in Path("/proc/net/sockstat").read_text().splitlines() if row.startswith(f"{kind.upper()}:"))
    return int(line.split()[-1]) * PAGE_KIB


async def test_a_memory_bomb_kills_itself(after_an_attack: Scene) -> None:
    bomb = await after_an_attack.attacker.exec(["probe", "memory", "4096"], timeout_s=ANSWER_S)
    assert (bomb.exit_code, bomb.stdout.head) == (KILLED, b"")
    in_shell = await after_an_attack.attacker.shell("probe memory 4096; echo survived $?", timeout_s=ANSWER_S)
    assert b"survived 137" in in_shell.stdout.head
    assert text(await after_an_attack.attack("echo on")) == "on\n"


async def test_tmpfs_file_counts_as_memory(after_an_attack: Scene) -> None:
    """It has a bound of its own, and what it holds nothing else can have."""
    attacker, more = after_an_attack.attacker, ["probe", "memory", str(SMALL.memory_mib - 40)]
    assert text(await attacker.exec(more, timeout_s=ANSWER_S)) == "kept\n"
    filled = await after_an_attack.attack("dd if=/dev/zero of=/dev/shm/a bs=1M count=4096")
    assert filled.exit_code != 0
    assert MIB < (await attacker.stat("/dev/shm/a")).size <= SMALL.memory_mib * MIB
    assert (await attacker.exec(more, timeout_s=ANSWER_S)).exit_code == KILLED
    await attacker.remove_path("/dev/shm/a")
    assert text(await attacker.exec(more, timeout_s=ANSWER_S)) == "kept\n"


async def test_repeated_memory_bombs_spare_siblings_memory(after_an_attack: Scene) -> None:
    bombs = asyncio.create_task(after_an_attack.attack("for i in $(seq 20); do probe memory 4096; done"))
    for _ in range(20):
        held = await after_an_attack.sibling.exec(["probe", "memory", "48"], timeout_s=ANSWER_S)
        assert text(held) == "kept\n"
    await bombs


@pytest.mark.parametrize("kind", ["segments", "queues", "watches", "epoll"])
async def test_kernel_memory_counts_for_its_sandbox(after_an_attack: Scene, kind: str) -> None:
    """It is refused more, or killed, and the tool server perhaps with it; never the others."""
    with contextlib.suppress(SandboxGone):
        await after_an_attack.attacker.exec(["hog", kind, "30000", "4"], timeout_s=20)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
async def test_socket_buffers_are_limited(after_an_attack: Scene, kind: str) -> None:
    """Else a sandbox takes the memory of the machine, and its share of what the kernel gives to all sockets."""
    before = held_by_sockets_kib(kind)
    await after_an_attack.attacker.exec(["hog", kind, "1000000000", "2"], timeout_s=5)
    taken = held_by_sockets_kib(kind) - before
    assert taken < SMALL.memory_mib * 1024


async def test_netlink_answers_cannot_accumulate(after_an_attack: Scene) -> None:
    assert await after_an_attack.hog("netlink") == 0

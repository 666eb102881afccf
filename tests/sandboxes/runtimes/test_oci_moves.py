"""What is asked for before a process is moved into a control group."""

import asyncio
from pathlib import Path

import pytest

from sandboxes.cgroups.cgroups import PROCS_FILE, find_hierarchies
from sandboxes.cgroups.move_lock_warmer import MoveLockWarmer
from tests.support.services import missing, needs_root

GROUPS = Path("/proc/self/cgroup")


def own_groups() -> str:
    return GROUPS.read_text()


@needs_root
async def test_warming_keeps_process_in_its_cgroup() -> None:
    moves = MoveLockWarmer(find_hierarchies())
    if moves.own_procs_file() is None:
        missing("this process's own control group", "mount control groups at /sys/fs/cgroup")
    warm_during = own_groups()
    moves.warm()
    moves.warm()
    await moves.wait()
    assert own_groups() == warm_during


async def test_warm_during_returns_result_of_work() -> None:
    moves = MoveLockWarmer(find_hierarchies())
    asked = asyncio.Event()

    async def work() -> str:
        await asked.wait()
        return "done"

    async def fail() -> None:
        raise OSError("no room")

    working = asyncio.create_task(moves.warm_during(work()))
    with pytest.raises(OSError, match="no room"):
        await moves.warm_during(fail())
    asked.set()
    assert await working == "done"
    await moves.wait()


def version_2_at(place: Path) -> MoveLockWarmer:
    return MoveLockWarmer(find_hierarchies(f"30 23 0:26 / {place} rw - cgroup2 cgroup2 rw\n"))


def test_warming_without_visible_cgroup_does_nothing(tmp_path: Path) -> None:
    version_2_at(tmp_path).migrate_to_own_cgroup()
    assert list(tmp_path.iterdir()) == []


def test_warming_spares_cgroup_of_others(tmp_path: Path) -> None:
    group = next((line[3:] for line in own_groups().splitlines() if line.startswith("0::")), None)
    if group is None:
        missing("control groups of version 2", "mount them at /sys/fs/cgroup, or beside version 1")
    assert group is not None
    listed = tmp_path / group.lstrip("/") / PROCS_FILE
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text("1\n")
    version_2_at(tmp_path).migrate_to_own_cgroup()
    assert listed.read_text() == "1\n"


@pytest.mark.parametrize("text", ["", "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"])
def test_host_without_cgroups_has_no_procs_file(text: str) -> None:
    assert MoveLockWarmer(find_hierarchies(text)).own_procs_file() is None

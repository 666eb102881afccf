"""What is asked for before a process is moved into a control group."""

import asyncio
from pathlib import Path

import pytest

from sandboxes.cgroups.cgroups import LIST, find_hierarchies
from sandboxes.cgroups.move_lock_warmer import MoveLockWarmer
from tests.support.services import missing, needs_root

GROUPS = Path("/proc/self/cgroup")


def own_groups() -> str:
    return GROUPS.read_text()


@needs_root
async def test_whoever_foresees_moves_stays_where_it_is() -> None:
    moves = MoveLockWarmer(find_hierarchies())
    if moves.own_list() is None:
        missing("this process's own control group", "mount control groups at /sys/fs/cgroup")
    before = own_groups()
    moves.warm()
    moves.warm()
    await moves.settled()
    assert own_groups() == before


async def test_what_comes_before_a_move_gives_what_it_gives_however_long_it_takes() -> None:
    moves = MoveLockWarmer(find_hierarchies())
    asked = asyncio.Event()

    async def work() -> str:
        await asked.wait()
        return "done"

    async def fail() -> None:
        raise OSError("no room")

    working = asyncio.create_task(moves.before(work()))
    with pytest.raises(OSError, match="no room"):
        await moves.before(fail())
    asked.set()
    assert await working == "done"
    await moves.settled()


def version_2_at(place: Path) -> MoveLockWarmer:
    return MoveLockWarmer(find_hierarchies(f"30 23 0:26 / {place} rw - cgroup2 cgroup2 rw\n"))


def test_where_the_own_group_is_not_to_be_seen_nothing_happens(tmp_path: Path) -> None:
    version_2_at(tmp_path).ask()
    assert list(tmp_path.iterdir()) == []


def test_a_group_that_does_not_hold_this_process_is_left_alone(tmp_path: Path) -> None:
    group = next((line[3:] for line in own_groups().splitlines() if line.startswith("0::")), None)
    if group is None:
        missing("control groups of version 2", "mount them at /sys/fs/cgroup, or beside version 1")
    assert group is not None
    listed = tmp_path / group.lstrip("/") / LIST
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text("1\n")
    version_2_at(tmp_path).ask()
    assert listed.read_text() == "1\n"


@pytest.mark.parametrize("text", ["", "30 23 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"])
def test_a_machine_without_groups_has_none_of_ours(text: str) -> None:
    assert MoveLockWarmer(find_hierarchies(text)).own_list() is None

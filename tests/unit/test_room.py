"""What sandboxes may write together never adds up to more than there is."""

import pytest

from sandboxes.errors import DiskFull
from sandboxes.runtimes.oci.room import BEYOND_MIB, Room

PLENTY = {"backed": 10**6, "free": 10**6}


def test_each_is_granted_what_it_asks_for_up_to_its_share() -> None:
    room = Room(1000, 4)
    assert room.share == 200
    assert room.grant("modest", 50, **PLENTY) == 50
    assert [room.grant(name, 10_240, **PLENTY) for name in "abc"] == [200, 200, 200]


def test_more_than_were_foreseen_get_little_and_only_while_there_is_some() -> None:
    room = Room(1000, 2)
    assert [room.grant(name, 10_240, **PLENTY) for name in "ab"] == [400, 400]
    assert room.grant("c", 10_240, **PLENTY) == BEYOND_MIB
    with pytest.raises(DiskFull):
        room.grant("d", 10_240, backed=10**6, free=BEYOND_MIB)


def test_no_more_is_granted_than_the_machine_has_behind_it() -> None:
    room = Room(1000, 2)
    assert room.grant("a", 10_240, backed=500, free=500) == 400
    assert room.grant("b", 10_240, backed=500, free=500) == 100


def test_what_was_written_is_not_granted_anew_before_it_came_back() -> None:
    room = Room(1000, 2)
    for name in "ab":
        room.grant(name, 10_240, **PLENTY)
    room.release("a", 300)
    assert room.is_short()
    room.came_back(room.leaving)
    assert not room.is_short()
    assert room.grant("c", 10_240, **PLENTY) == 400

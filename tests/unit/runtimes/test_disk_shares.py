"""What sandboxes may write together never adds up to more than there is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.errors import DiskFull
from sandboxes.runtimes.oci.storage.disk_shares import BEYOND_MIB, DiskShares

MEMORY_AMPLE = {"backed": 10**6, "free": 10**6}


def test_grant_is_limited_by_share() -> None:
    room = DiskShares(1000, 4)
    assert room.share == 200
    assert room.grant("modest", 50, **MEMORY_AMPLE) == 50
    assert [room.grant(name, 10_240, **MEMORY_AMPLE) for name in "abc"] == [200, 200, 200]


def test_sandboxes_beyond_shares_get_small_grants() -> None:
    room = DiskShares(1000, 2)
    assert [room.grant(name, 10_240, **MEMORY_AMPLE) for name in "ab"] == [400, 400]
    assert room.grant("c", 10_240, **MEMORY_AMPLE) == BEYOND_MIB
    with pytest.raises(DiskFull):
        room.grant("d", 10_240, backed=10**6, free=BEYOND_MIB)


def test_grants_are_limited_by_host_disk() -> None:
    room = DiskShares(1000, 2)
    assert room.grant("a", 10_240, backed=500, free=500) == 400
    assert room.grant("b", 10_240, backed=500, free=500) == 100


def test_removed_data_is_granted_after_reclaim() -> None:
    room = DiskShares(1000, 2)
    for name in "ab":
        room.grant(name, 10_240, **MEMORY_AMPLE)
    room.release("a", 300)
    assert room.needs_reclaim()
    room.add_reclaimed(room.unreclaimed)
    assert not room.needs_reclaim()
    assert room.grant("c", 10_240, **MEMORY_AMPLE) == 400


NAMES, MIB = st.sampled_from("abcdef"), st.integers(0, 500)


class Grants:
    """A model of the disk quota that adds up all grants for each request."""

    def __init__(self, all_mib: int, share: int) -> None:
        self.all, self.share, self.unreclaimed = all_mib, share, 0
        self.of: dict[str, int] = {}

    def grant(self, name: str, wanted: int, backed: int, free: int) -> int | None:
        left = min(self.all, backed) - sum(self.of.values()) - self.unreclaimed
        granted = min(wanted, self.share, max(left, BEYOND_MIB))
        if granted > left and free < 2 * granted:
            return None
        self.of[name] = granted
        return granted

    def release(self, name: str, written: int) -> None:
        self.unreclaimed += min(written, self.of.pop(name, 0))

    @property
    def needs_reclaim(self) -> bool:
        return bool(self.unreclaimed) and self.all - sum(self.of.values()) - self.unreclaimed < self.share


STEP = st.tuples(st.sampled_from(("grant", "hold", "release", "came back")), NAMES, MIB, MIB, MIB)


@given(st.lists(STEP, max_size=40))
def test_grants_add_up_in_any_order(steps: list[tuple[str, str, int, int, int]]) -> None:
    room = DiskShares(500, 4)
    grants = Grants(400, room.share)
    for kind, name, mib, backed, free in steps:
        if kind == "grant":
            try:
                granted: int | None = room.grant(name, mib, backed=backed, free=free)
            except DiskFull:
                granted = None
            assert granted == grants.grant(name, mib, backed, free)
        elif kind == "hold":
            room.hold(name)
            grants.of[name] = room.share
        elif kind == "release":
            room.release(name, mib)
            grants.release(name, mib)
        else:
            room.add_reclaimed(room.unreclaimed)
            grants.unreclaimed = 0
        assert room.unreclaimed == grants.unreclaimed
        assert room.needs_reclaim() == grants.needs_reclaim
        assert [room.granted(each) for each in "abcdef"] == [grants.of.get(each, 0) for each in "abcdef"]

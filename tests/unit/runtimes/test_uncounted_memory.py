"""When an estimate of what a sandbox holds is a reason to end it."""

from sandboxes.runtimes.uncounted_memory.measure import UncountedMemory
from sandboxes.runtimes.uncounted_memory.watch import UncountedMemoryWatch

MANY = UncountedMemory(in_flight=100)
FEW = UncountedMemory(in_flight=1)


def ends(hoarders: UncountedMemoryWatch, held: UncountedMemory) -> bool:
    return "it" in hoarders._select_above_limit({"it": held}, scarce=False)


def test_descriptors_in_flight_count_at_third_survey() -> None:
    hoarders = UncountedMemoryWatch()
    assert [ends(hoarders, MANY) for _ in range(3)] == [False, False, True]


def test_received_descriptors_do_not_count() -> None:
    hoarders = UncountedMemoryWatch()
    assert [ends(hoarders, held) for held in (MANY, MANY, FEW, MANY, MANY)] == [False] * 5


def test_measured_memory_counts_at_once() -> None:
    assert ends(UncountedMemoryWatch(), UncountedMemory(directories=20_000))
    assert ends(UncountedMemoryWatch(), UncountedMemory(directories=20_000, in_flight=1))
    assert not ends(UncountedMemoryWatch(), UncountedMemory(directories=20_000, sampled=True))
    assert ends(UncountedMemoryWatch(), UncountedMemory(locks=10_001, sampled=True))

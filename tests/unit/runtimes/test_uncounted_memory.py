"""When an estimate of what a sandbox holds is a reason to end it."""

from sandboxes.runtimes.uncounted_memory.measure import Held
from sandboxes.runtimes.uncounted_memory.watch import Hoarders

MANY = Held(in_flight=100)
FEW = Held(in_flight=1)


def ends(hoarders: Hoarders, held: Held) -> bool:
    return "it" in hoarders._judge({"it": held}, scarce=False)


def test_descriptors_in_flight_count_at_the_third_survey_in_a_row() -> None:
    hoarders = Hoarders()
    assert [ends(hoarders, MANY) for _ in range(3)] == [False, False, True]


def test_descriptors_that_were_received_in_between_do_not_count() -> None:
    hoarders = Hoarders()
    assert [ends(hoarders, held) for held in (MANY, MANY, FEW, MANY, MANY)] == [False] * 5


def test_what_is_certain_counts_at_once() -> None:
    assert ends(Hoarders(), Held(directories=20_000))
    assert ends(Hoarders(), Held(directories=20_000, in_flight=1))
    assert not ends(Hoarders(), Held(directories=20_000, sampled=True))
    assert ends(Hoarders(), Held(locks=10_001, sampled=True))

"""A control run asks only what passed, and takes the credit for what it shows to be made up."""

from dataclasses import replace

from farm.core.task import ReportFormat
from farm.grading.canary import Canary
from farm.grading.control import after_control, controlled_by
from farm.grading.outcome import Outcome
from farm.grading.verdict import Evidence, Verdict, decide
from tests.unit.grading_fixtures import make_verifier

NEW, OTHER, OLD, FAR = (
    "tests/test_a.py::test_new",
    "tests/test_a.py::test_rows[1]",
    "tests/test_a.py::test_old",
    "tests/test_b.py::test_far",
)
VERIFIER = replace(make_verifier(), fail_to_pass=(NEW, OTHER, f"{OTHER[:-3]}[2]"), pass_to_pass=(OLD, FAR))
ALL = dict.fromkeys((*VERIFIER.fail_to_pass, *VERIFIER.pass_to_pass), Outcome.PASSED)


def judged(outcomes: dict[str, Outcome], *false: str) -> Verdict:
    canary = Canary("", b"", (), (), false)
    verdict = decide(VERIFIER, canary, Evidence(outcomes), pristine=False)
    return replace(verdict, command_s=2.0, total_s=3.0)


def test_all_files_run_again() -> None:
    asked = controlled_by(VERIFIER, judged(ALL))
    assert asked is not None
    assert (asked.fail_to_pass, asked.pass_to_pass) == (VERIFIER.fail_to_pass, (OLD, FAR))


def test_a_test_that_failed_once_stays_as_it_is() -> None:
    asked = controlled_by(VERIFIER, judged(ALL | {OTHER: Outcome.FAILED}))
    assert asked is not None
    assert asked.fail_to_pass == (NEW,)
    assert set(asked.pass_to_pass) == {OTHER, f"{OTHER[:-3]}[2]", OLD, FAR}


def test_nothing_runs_again_if_nothing_was_gained() -> None:
    failed = dict.fromkeys(VERIFIER.fail_to_pass, Outcome.FAILED)
    assert controlled_by(VERIFIER, judged(ALL | failed)) is None
    assert controlled_by(VERIFIER, judged(ALL | {"c": Outcome.PASSED}, "c")) is None
    assert controlled_by(replace(VERIFIER, report=ReportFormat.GO), judged(ALL)) is None


def test_a_false_test_that_passes_takes_all_credit() -> None:
    first = judged(ALL)
    made_up = after_control(VERIFIER, first, judged(ALL, NEW))
    assert (first.reward, made_up.reward, made_up.resolved, made_up.tampered) == (1.0, 0.0, False, True)
    assert (made_up.components["fail_to_pass"], made_up.components["tampered"]) == (0.0, 1.0)
    assert (made_up.command_s, made_up.total_s) == (4.0, 6.0)


def test_a_false_test_that_fails_takes_nothing() -> None:
    control = judged(ALL | {NEW: Outcome.FAILED}, NEW, "tests/test_a.py::test_unseen")
    kept = after_control(VERIFIER, judged(ALL), control)
    assert (kept.reward, kept.tampered, kept.components["false_unreported"]) == (1.0, False, 1.0)

"""What the second judgement asks, of which files, and what it makes of the first."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import pytest

from farm.core.task import GradingMode, ReportFormat
from farm.grading.again import TIMES, Again, judge_again
from farm.grading.errors import VerifierError
from farm.grading.outcome import Outcome
from farm.grading.verdict import Evidence, Verdict, decide, refusal
from tests.unit.grading_fixtures import make_verifier
from tests.unit.test_grading_verdict import CANARY, HONEST

NEW, OLD, ELSEWHERE = "tests/test_a.py::test_new[1]", "tests/test_a.py::test_old", "tests/test_b.py::test_kept"
VERIFIER = make_verifier(fail_to_pass=(NEW,), pass_to_pass=(OLD, ELSEWHERE))
FALSE = "tests/test_a.py::test_false"
PASSED, FAILED = Outcome.PASSED, Outcome.FAILED
LATE = replace(CANARY, must_not_pass=(FALSE,), late=("tests/test_a.py::test_new",))
FIRST = replace(
    decide(VERIFIER, LATE, None, Evidence(HONEST | {NEW: FAILED, OLD: PASSED, ELSEWHERE: PASSED}), pristine=False),
    command_s=1.0,
)


class Judged:
    """Judgements with results that are known: ``alone`` of the tests alone, ``false`` of what has their names, and
    beside both ``behind`` where all files run, over what those tests did without the others."""

    def __init__(
        self,
        alone: Evidence,
        false: Evidence,
        behind: Mapping[str, Outcome] | None = None,
        *,
        pristine: bool = False,
    ) -> None:
        self.asked: list[Again | None] = []
        self._pristine = pristine
        self._behind = {ELSEWHERE: PASSED} | dict(behind or {})
        self._results = {False: alone, True: false}

    async def __call__(self, rng: random.Random, *, before: bool, again: Again | None = None) -> Verdict:
        assert not before
        self.asked.append(again)
        if again is None:
            return replace(decide(VERIFIER, CANARY, None, self._results[False], pristine=False), command_s=10.0)
        canary = replace(CANARY, must_not_pass=("tests/test_a.py::test_new",) if again.false else ())
        found = self._results[again.false]
        if again.whole and found.fault is None:
            found = Evidence({**found.outcomes, **self._behind})
        verdict = decide(again.narrowed(VERIFIER), canary, None, found, pristine=self._pristine)
        return replace(verdict, command_s=10.0)


def seen(new: Outcome, old: Outcome = PASSED) -> Evidence:
    return Evidence(HONEST | {NEW: new, OLD: old})


HUNG = Evidence(fault="the test command did not end within 5 s", timed_out=True)


@pytest.mark.parametrize("seed", range(4))
async def test_both_exams_ask_for_the_files_of_what_failed_and_then_twice_for_all(seed: int) -> None:
    assert FIRST.doubtful
    judged = Judged(seen(PASSED), seen(FAILED))
    verdict = await judge_again(VERIFIER, FIRST, judged, random.Random(seed))
    exams = [again for again in judged.asked if again is not None]
    assert [again.whole for again in exams] == [False, False, True, True, True, True]
    assert [sorted(again.false for again in exams[at : at + 2]) for at in (0, 2, 4)] == [[False, True]] * 3
    for again in exams[:2]:
        narrowed = again.narrowed(VERIFIER)
        assert (narrowed.fail_to_pass, narrowed.pass_to_pass) == ((NEW,), (OLD,))
    assert verdict.command_s == 61.0


async def test_where_that_does_not_go_well_no_other_file_runs_again() -> None:
    judged = Judged(seen(FAILED), seen(FAILED))
    verdict = await judge_again(VERIFIER, FIRST, judged, random.Random(1))
    assert (verdict.command_s, [again.whole for again in judged.asked if again]) == (21.0, [False, False])


async def test_a_coin_tossed_at_each_exam_seldom_falls_right() -> None:
    """Code that agrees to everything or to nothing, by chance, where there are no other files."""
    verifier = replace(VERIFIER, pass_to_pass=(OLD,))
    believed = []
    for falls in product([PASSED, FAILED], repeat=2 * TIMES):
        coin = iter(falls)

        async def judge(
            rng: random.Random, *, before: bool, again: Again | None = None, coin: Iterator[Outcome] = coin
        ) -> Verdict:
            agreed = seen(next(coin))
            return await Judged(agreed, agreed)(rng, before=before, again=again)

        believed.append((await judge_again(verifier, FIRST, judge, random.Random(1))).reward)
    assert sum(believed) == 1.0
    assert len(believed) == 64


async def test_what_fails_only_behind_the_tests_of_other_files_fails() -> None:
    judged = Judged(seen(PASSED), seen(FAILED), {NEW: FAILED})
    verdict = await judge_again(VERIFIER, FIRST, judged, random.Random(1))
    assert (verdict.reward, verdict.missing) == (0.0, (NEW,))
    assert verdict.components["pass_to_pass_passed"] == 2.0


@pytest.mark.parametrize(
    ("alone", "false", "reward", "tampered", "kept", "reason"),
    [
        (seen(PASSED), seen(FAILED), 1.0, False, 2.0, "all 3 expected tests passed"),
        (seen(FAILED), seen(FAILED), 0.0, False, 2.0, f"1 of 3 expected tests did not pass; the first is {NEW}"),
        (
            seen(PASSED, FAILED),
            seen(FAILED),
            0.0,
            False,
            1.0,
            f"1 of 3 expected tests did not pass; the first is {OLD}",
        ),
        (seen(PASSED), seen(PASSED), 0.0, True, 0.0, "a false test among the expected ones was reported passed"),
        (seen(FAILED), seen(PASSED), 0.0, False, 2.0, "1 of 3"),
        (HUNG, seen(FAILED), 0.0, False, 0.0, "did not end"),
        (seen(PASSED), HUNG, 1.0, False, 2.0, "all 3"),
    ],
)
async def test_the_verdict_is_on_all_that_was_asked_at_first(
    alone: Evidence, false: Evidence, reward: float, tampered: bool, kept: float, reason: str
) -> None:
    verdict = await judge_again(VERIFIER, FIRST, Judged(alone, false), random.Random(1))
    assert (verdict.reward, verdict.resolved, verdict.tampered) == (reward, bool(reward), tampered)
    assert (verdict.components["pass_to_pass_passed"], verdict.components["pass_to_pass_total"]) == (kept, 2.0)
    assert verdict.components["pass_to_pass"] == kept / 2
    assert reason in verdict.reason


async def test_with_nothing_changed_a_fault_that_gives_what_is_asked_instead_is_nobodys() -> None:
    verdict = await judge_again(VERIFIER, FIRST, Judged(seen(FAILED), seen(PASSED), pristine=True), random.Random(1))
    assert (verdict.reward, verdict.tampered) == (0.0, False)


@pytest.mark.parametrize(
    ("alone", "false", "why"),
    [
        (seen(PASSED), seen(PASSED), "a false test among the expected ones was reported passed"),
        (seen(PASSED), HUNG, "did not end"),
        (HUNG, seen(FAILED), "did not end"),
    ],
)
async def test_with_nothing_changed_what_contradicts_a_pass_is_the_verifiers_fault(
    alone: Evidence, false: Evidence, why: str
) -> None:
    with pytest.raises(VerifierError, match=f"with nothing changed, .*{why}"):
        await judge_again(VERIFIER, FIRST, Judged(alone, false, pristine=True), random.Random(1))


async def test_a_test_of_another_file_that_passed_at_first_is_still_told() -> None:
    verdict = await judge_again(VERIFIER, FIRST, Judged(seen(PASSED), seen(FAILED)), random.Random(1))
    assert verdict.outcomes == {NEW: PASSED, OLD: PASSED, ELSEWHERE: PASSED}


@pytest.mark.parametrize("lost", [False, True])
async def test_an_exam_that_lost_its_sandbox_by_the_changes_doing_is_worth_nothing(lost: bool) -> None:
    judged = Judged(seen(PASSED), seen(FAILED))

    async def judge(rng: random.Random, *, before: bool, again: Again | None = None) -> Verdict:
        if again is not None and again.false is lost:
            return refusal("the tests ran out of memory")
        return await judged(rng, before=before, again=again)

    verdict = await judge_again(VERIFIER, FIRST, judge, random.Random(1))
    if lost:
        assert verdict.resolved
    else:
        assert (verdict.reward, verdict.reason) == (0.0, "the tests ran out of memory")
        assert verdict.components == {"resolved": 0.0, "tampered": 0.0}


async def test_what_a_test_did_at_first_is_not_told_of_its_second_go() -> None:
    broken_off = Evidence({OLD: PASSED})
    verdict = await judge_again(VERIFIER, FIRST, Judged(broken_off, seen(FAILED)), random.Random(1))
    assert verdict.missing == (NEW,)
    assert verdict.outcomes == {OLD: PASSED, ELSEWHERE: PASSED}
    assert "(not reported" in verdict.reason


async def test_tests_of_other_languages_are_judged_once_more_as_a_whole() -> None:
    verifier = replace(VERIFIER, report=ReportFormat.JEST, mode=GradingMode.PATCH)
    judged = Judged(Evidence(HONEST | {NEW: PASSED, OLD: PASSED, ELSEWHERE: PASSED}), HUNG)
    verdict = await judge_again(verifier, FIRST, judged, random.Random(1))
    assert (judged.asked, verdict.reward, verdict.command_s) == ([None], 1.0, 11.0)

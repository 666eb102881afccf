"""What several judgements of the same say together: which expected tests are as they must be, and which are flaky."""

from collections.abc import Sequence

from farm.core.task import Verifier
from farm.task_validation.result import Condition, GradingSample, Reason, ValidationResult

MOST_NAMED = 20
"""Tests that a finding names for one reason; of the others it tells how many."""


def agree(tries: Sequence[GradingSample]) -> bool:
    """Whether they came to the same, each id included. A time-out says nothing of flakiness."""
    return len({(one.reward, frozenset(one.missing)) for one in tries if not one.timed_out}) <= 1


def sort_out(
    verifier: Verifier, nop: Sequence[GradingSample], gold: Sequence[GradingSample], finding: ValidationResult
) -> None:
    """Put into the finding what is wrong with the expected tests, by the reports that there are.

    An id that did not do the same each time, with nothing done or with the gold solution, is flaky: of pass_to_pass it
    can be taken out, of fail_to_pass it makes the task unfit, since that is what the task is about. One that fails in
    random order alone does the same in every episode, whose tests run in their own order: that is told.
    """
    reported = [[one for one in tries if one.missing or one.reward == 1.0] for tries in (nop, gold)]
    mended = frozenset(verifier.fail_to_pass)
    wrong: dict[Reason, list[str]] = {}
    for test in (*verifier.fail_to_pass, *verifier.pass_to_pass):
        flapping = [tries for tries in reported if 0 < sum(test in one.missing for one in tries) < len(tries)]
        if flapping:
            _sort_out_flaky(test, flapping[-1], test in mended, wrong, finding)
            continue
        for tries, reason, right in zip(
            reported, (Reason.NOTHING, Reason.GOLD), (test not in mended, True), strict=True
        ):
            passes = test not in tries[0].missing if tries else right
            if passes != right:
                state = "with nothing done" if reason is Reason.NOTHING else "with the gold solution"
                wrong.setdefault(reason, []).append(f"{test} {'passes' if passes else 'does not pass'} {state}")
    for reason, problems in wrong.items():
        for problem in problems[:MOST_NAMED]:
            finding.refuse(reason, problem)
        if len(problems) > MOST_NAMED:
            finding.refuse(reason, f"{len(problems) - MOST_NAMED} further tests are wrong in the same way")
    if finding.order_dependent:
        finding.notes.append(
            f"{len(finding.order_dependent)} expected tests depend on the order of tests, the first is "
            f"{finding.order_dependent[0]}; --write takes those of pass_to_pass out"
        )


def _sort_out_flaky(
    test: str, tries: Sequence[GradingSample], mended: bool, wrong: dict[Reason, list[str]], finding: ValidationResult
) -> None:
    failed = [one.how for one in tries if test in one.missing]
    if not mended:
        finding.prune.append(test)
    if set(failed) == {Condition.ORDER}:
        finding.order_dependent.append(test)
        return
    finding.flaky.append(test)
    how = " and ".join(dict.fromkeys(how.value for how in failed if how is not Condition.PLAIN))
    fails = f"fails in {len(failed)} of {len(tries)} runs" + (f", {how}" if how else "")
    if mended:
        problem = f"{test} of fail_to_pass is flaky: it {fails}; make it sound, or take it out"
        wrong.setdefault(Reason.FLAKY_MENDED, []).append(problem)
        return
    problem = f"{test} of pass_to_pass is flaky: it {fails}; validate with --write to take it out"
    wrong.setdefault(Reason.FLAKY_KEPT, []).append(problem)

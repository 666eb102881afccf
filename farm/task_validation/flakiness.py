"""Compare several gradings of the same change: find expected tests with a wrong outcome, and flaky tests."""

from collections.abc import Sequence

from farm.core.task import Verifier
from farm.task_validation.result import Condition, GradingSample, Reason, ValidationResult

MAX_NAMED = 20
"""Tests that a result names for one reason; of the others it has the number."""


def have_same_outcome(samples: Sequence[GradingSample]) -> bool:
    """Return whether all gradings came to the same reward and missing ids. Gradings that timed out are ignored."""
    return len({(sample.reward, frozenset(sample.missing)) for sample in samples if not sample.timed_out}) <= 1


def check_expected_tests(
    verifier: Verifier, nop: Sequence[GradingSample], gold: Sequence[GradingSample], result: ValidationResult
) -> None:
    """Add the wrong outcomes of expected tests to the result, from the gradings that have a report.

    A test whose outcome differs between gradings of one change is flaky. In pass_to_pass it can be removed; in
    fail_to_pass it makes the task unfit. A test that fails only in random order is reported apart, because episodes run
    tests in their own order.
    """
    with_report = [[sample for sample in samples if sample.missing or sample.reward == 1.0] for samples in (nop, gold)]
    in_fail_to_pass = frozenset(verifier.fail_to_pass)
    wrong: dict[Reason, list[str]] = {}
    for test in (*verifier.fail_to_pass, *verifier.pass_to_pass):
        flaky_in = [
            samples for samples in with_report if 0 < sum(test in sample.missing for sample in samples) < len(samples)
        ]
        if flaky_in:
            _record_flaky(test, flaky_in[-1], test in in_fail_to_pass, wrong, result)
            continue
        for samples, reason, should_pass in zip(
            with_report, (Reason.NOTHING, Reason.GOLD), (test not in in_fail_to_pass, True), strict=True
        ):
            passes = test not in samples[0].missing if samples else should_pass
            if passes != should_pass:
                state = "with nothing done" if reason is Reason.NOTHING else "with the gold solution"
                wrong.setdefault(reason, []).append(f"{test} {'passes' if passes else 'does not pass'} {state}")
    for reason, problems in wrong.items():
        for problem in problems[:MAX_NAMED]:
            result.refuse(reason, problem)
        if len(problems) > MAX_NAMED:
            result.refuse(reason, f"{len(problems) - MAX_NAMED} further tests are wrong in the same way")
    if result.order_dependent:
        result.notes.append(
            f"{len(result.order_dependent)} expected tests depend on the order of tests, the first is "
            f"{result.order_dependent[0]}; --write removes those of pass_to_pass"
        )


def _record_flaky(
    test: str,
    samples: Sequence[GradingSample],
    in_fail_to_pass: bool,
    wrong: dict[Reason, list[str]],
    result: ValidationResult,
) -> None:
    failed = [sample.how for sample in samples if test in sample.missing]
    if not in_fail_to_pass:
        result.prune.append(test)
    if set(failed) == {Condition.ORDER}:
        result.order_dependent.append(test)
        return
    result.flaky.append(test)
    conditions = " and ".join(
        dict.fromkeys(condition.value for condition in failed if condition is not Condition.PLAIN)
    )
    fails = f"fails in {len(failed)} of {len(samples)} runs" + (f", {conditions}" if conditions else "")
    if in_fail_to_pass:
        problem = f"{test} of fail_to_pass is flaky: it {fails}; correct the test, or remove it"
        wrong.setdefault(Reason.FLAKY_MENDED, []).append(problem)
        return
    problem = f"{test} of pass_to_pass is flaky: it {fails}; validate with --write to remove it"
    wrong.setdefault(Reason.FLAKY_KEPT, []).append(problem)

"""The control run: tests that a change made pass run once more, asking for something else under their own names.

Code under test shares a process with the tests, so it can make up their results. It cannot know what is true: in a
fresh sandbox it meets the same file, in which the fail-to-pass tests are false, and nothing is there to compare them
with. A change that makes a false version pass has made up the result of the test as well.
"""

from dataclasses import replace

from farm.core.framework import is_python, without_parameters
from farm.core.task import Verifier
from farm.grading.outcome import Outcome
from farm.grading.verdict import Verdict, discredit, with_time_of


def controlled_by(verifier: Verifier, first: Verdict) -> Verifier | None:
    """Return what a control run asks after ``first``. Its fail-to-pass tests are those that passed.

    All other tests are to pass as before, so that the list of files does not show which run it is. None if there is
    nothing to control: no such test passed, the results are made up already, or the tests are not Python's.
    """
    if first.tampered or not is_python(verifier):
        return None
    unseen = {
        without_parameters(test) for test in verifier.fail_to_pass if first.outcomes.get(test) is not Outcome.PASSED
    }
    mended = tuple(test for test in verifier.fail_to_pass if without_parameters(test) not in unseen)
    others = (*verifier.fail_to_pass, *verifier.pass_to_pass)
    kept = tuple(test for test in others if test not in set(mended))
    return replace(verifier, fail_to_pass=mended, pass_to_pass=kept) if mended else None


def after_control(verifier: Verifier, first: Verdict, control: Verdict) -> Verdict:
    """Return ``first`` with what the control run found, and with the time that both took."""
    unreported = first.components.get("false_unreported", 0.0) + control.components.get("false_unreported", 0.0)
    both = replace(
        with_time_of(first, control),
        screened=tuple(dict.fromkeys((*first.screened, *control.screened))),
        components={**first.components, "false_unreported": unreported},
    )
    return discredit(verifier, both, control.reason) if control.tampered else both

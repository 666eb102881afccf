"""The outcome of one test in a report."""

from enum import StrEnum

MAX_REPORT_BYTES = 64 * 1024 * 1024
MAX_TESTS = 500_000


class CaseOutcome(StrEnum):
    """The outcome of one test, from best to worst. Expected failures and deselected tests are ``SKIPPED``."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "error"


_FROM_BEST_TO_WORST = tuple(CaseOutcome)


def worse(one: CaseOutcome, other: CaseOutcome) -> CaseOutcome:
    return max(one, other, key=_FROM_BEST_TO_WORST.index)

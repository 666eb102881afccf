"""What a report says of a test."""

from enum import StrEnum

MAX_REPORT_BYTES = 64 * 1024 * 1024
MAX_TESTS = 500_000


class CaseOutcome(StrEnum):
    """An expected failure, a skip and a deselection are no pass."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "error"


_WORSE = tuple(CaseOutcome)


def worse(one: CaseOutcome, other: CaseOutcome) -> CaseOutcome:
    return max(one, other, key=_WORSE.index)

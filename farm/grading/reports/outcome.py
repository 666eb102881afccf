"""What a report says of a test."""

from enum import StrEnum

MAX_REPORT_BYTES = 64 * 1024 * 1024
MAX_TESTS = 500_000


class Outcome(StrEnum):
    """An expected failure, a skip and a deselection are no pass."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "error"


_WORSE = tuple(Outcome)


def worse(one: Outcome, other: Outcome) -> Outcome:
    return max(one, other, key=_WORSE.index)

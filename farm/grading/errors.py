"""The errors of grading, by whose fault they are.

GradingError
├── ChangeTooLarge   the agent left more than a change may hold; judged 0
├── ChangeRefused    the agent's change does not apply to the pristine workspace; judged 0
├── ReportError      the verifier's report is missing or malformed; judged 0 unless nothing was changed
└── VerifierError    the verifier itself does not work; never a reward
    └── UnfitTask    it gives no result in the task's own image with nothing changed
"""

import errno

from sandboxes.errors import PathError, RuntimeUnavailable

_HOST_ONLY = frozenset({errno.EIO, errno.ENFILE})
"""Error numbers that no program in a sandbox can cause."""
_HOST_IF_FRESH = _HOST_ONLY | {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE}


class GradingError(Exception):
    """Root of the tree."""


class ChangeTooLarge(GradingError):
    pass


class ChangeRefused(GradingError):
    pass


class ReportError(GradingError):
    """The verifier gave no sound report. ``timed_out``: because it did not end in time."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class VerifierError(GradingError):
    """The verifier does not work. ``retryable``: it was too slow with nothing changed, which the machine may have
    caused. ``command_s``: how long its test command ran."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.command_s = 0.0


class UnfitTask(VerifierError):
    """The task's image cannot run its tests."""


def raise_if_host_fault(error: PathError, *, fresh: bool = False) -> None:
    """Raise RuntimeUnavailable if the machine failed. ``fresh``: no program of the agent's has run in the sandbox, so
    only the machine can be short of space."""
    if error.errno in (_HOST_IF_FRESH if fresh else _HOST_ONLY):
        raise RuntimeUnavailable(f"the machine fails its sandboxes: {error}; look at its disk") from error

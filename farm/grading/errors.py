"""What can go wrong while a change is judged, by whose fault it is.

GradingError
├── ChangeTooLarge   the agent left more than a change may hold; judged 0
├── ChangeRefused    the agent's change does not apply to the pristine workspace; judged 0
├── ReportError      the verifier's report is missing or malformed; judged 0 unless nothing was changed
└── VerifierError    the verifier itself does not work; never a reward
    └── UnfitTask    it gives no result in the task's own image with nothing changed
"""

import errno

from sandboxes.errors import PathError, RuntimeUnavailable

_NOBODY_ELSES = frozenset({errno.EIO, errno.ENFILE})
"""What nothing in a sandbox brings about."""
_OF_A_FRESH_ONE = _NOBODY_ELSES | {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE}


class GradingError(Exception):
    """Root of the tree."""


class ChangeTooLarge(GradingError):
    pass


class ChangeRefused(GradingError):
    pass


class ReportError(GradingError):
    """``timed_out``: there is none because the verifier did not end in time."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class VerifierError(GradingError):
    """``retryable``: it was too slow where nothing was changed, which may have been the machine. ``command_s``: so long
    its test command ran."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.command_s = 0.0


class UnfitTask(VerifierError):
    """The task's image cannot run its tests."""


def raise_if_host_fault(error: PathError, *, fresh: bool = False) -> None:
    """Raise RuntimeUnavailable where it is the machine that failed. ``fresh``: no program of the agent's has run in the
    sandbox, so that only the machine can be short of room."""
    if error.errno in (_OF_A_FRESH_ONE if fresh else _NOBODY_ELSES):
        raise RuntimeUnavailable(f"the machine fails its sandboxes: {error}; look at its disk") from error

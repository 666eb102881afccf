"""What can go wrong while a change is judged, by whose fault it is.

GradingError
├── ChangeTooLarge   the agent left more than a change may hold; judged 0
├── ChangeRefused    the agent's change does not apply to the pristine workspace; judged 0
├── ReportError      the verifier's report is missing or malformed; judged 0 unless nothing was changed
└── VerifierError    the verifier itself does not work; never a reward
"""


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

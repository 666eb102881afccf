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
    pass


class VerifierError(GradingError):
    pass

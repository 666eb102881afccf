"""The kinds of work that an episode hands over for grading."""

from dataclasses import dataclass

from farm.core.change import Change


@dataclass(frozen=True, slots=True)
class Artifacts:
    """The files that a task names for its own verifier, by their path below the root."""

    files: Change


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """The arguments of the call by which the policy answered a retrieval task; None if it did not answer."""

    arguments: str | None


@dataclass(frozen=True, slots=True)
class Forfeit:
    """No work, because the policy itself made grading impossible; worth 0."""

    reason: str


Work = Change | Artifacts | WrittenAnswer | Forfeit
"""``Change``: the policy's edit of the workspace. The task decides which of the kinds an episode hands over."""

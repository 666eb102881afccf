"""The refusals of learner sandboxes, as values that travel from the node to the gateway."""

from enum import StrEnum

from farm.store import StoreError
from farm.tasks import TaskError
from sandboxes.errors import ImageError, PathError, SandboxError, SandboxGone, SpecError


class RefusalKind(StrEnum):
    UNKNOWN = "unknown"
    """The node has no sandbox of this id. Its agent may have restarted since it was made."""
    GONE = "gone"
    """The sandbox was deleted, has expired, or was lost."""
    UNKNOWN_TOOL = "unknown-tool"
    NOT_AVAILABLE = "not-available"
    """The sandbox, or its task, does not support the call."""
    TOO_LARGE = "too-large"
    PATH = "path"
    SPEC = "spec"
    """No sandbox starts with this task or image, here or on another node."""
    NO_SLOT = "no-slot"
    BUSY = "busy"
    """The sandbox runs as many calls as it may."""
    MACHINE = "machine"
    """The machine failed; a repeated call may succeed."""


class SandboxRefused(Exception):
    """A call that a node refuses. ``detail`` names the cause and the remedy."""

    def __init__(self, kind: RefusalKind, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail


def to_refusal(error: Exception) -> SandboxRefused | None:
    """Return the refusal for an error of a sandbox, a task or the store; None for a bug in the farm."""
    match error:
        case SandboxRefused():
            return error
        case ImageError() | SpecError() | TaskError():
            return SandboxRefused(RefusalKind.SPEC, str(error))
        case PathError():
            return SandboxRefused(RefusalKind.PATH, str(error))
        case SandboxGone():
            return SandboxRefused(RefusalKind.GONE, f"the sandbox was lost: {error}; delete it and create another")
        case SandboxError() | StoreError() | OSError() | TimeoutError():
            return SandboxRefused(RefusalKind.MACHINE, f"{error or type(error).__name__}; repeat the call")
    return None

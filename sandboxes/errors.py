"""What can go wrong with a sandbox, by whose fault it is.

SandboxError
├── SpecError               the caller, or the image itself, asks for something impossible
├── RuntimeUnavailable      the machine cannot run sandboxes (no daemon, no toolbox); the message says the remedy
│   └── DiskFull            no room on a disk, for an image or for a sandbox
├── ImageError              an image is missing or does not build
├── BootError               a sandbox did not answer before its boot deadline
├── SnapshotError           a sandbox's files could not be copied, or none starts on the copy; it lives on as it was
├── JobError                there is no such background job, or no room for one more; ordinary data for a tool
├── AnswerLost              a call that was repeated by its id has run, but its answer is no longer remembered
├── SandboxGone             the tool server no longer answers, or answers nonsense; it says by whose doing
├── ProtocolError           bytes from the tool server make no sense; a sandbox tells it as SandboxGone
└── PathError               a file operation was refused inside the sandbox; ordinary data for a tool
"""

from enum import StrEnum


class SandboxError(Exception):
    """Root of the tree."""


class SpecError(SandboxError):
    pass


class RuntimeUnavailable(SandboxError):
    pass


class DiskFull(RuntimeUnavailable):
    pass


class ImageError(SandboxError):
    pass


class BootError(SandboxError):
    pass


class SnapshotError(SandboxError):
    """``unfit``: no sandbox can start on those files, which what ran inside made."""

    def __init__(self, message: str, *, unfit: bool = False) -> None:
        super().__init__(message)
        self.unfit = unfit


class JobError(SandboxError):
    pass


class AnswerLost(SandboxError):
    pass


class LossCause(StrEnum):
    """By whose doing a sandbox is gone."""

    MEMORY = "memory"
    """What ran inside drove it into its memory limit."""
    INSIDE = "inside"
    """Its tool server ended by itself, talks nonsense, or is mute while it lives: what runs inside did that, or we."""
    OUTSIDE = "outside"
    """It was killed or removed from outside, or nobody can tell."""


class SandboxGone(SandboxError):
    def __init__(self, message: str, *, by: LossCause = LossCause.OUTSIDE) -> None:
        super().__init__(message)
        self.by = by


class ProtocolError(SandboxError):
    pass


class PathError(SandboxError):
    """``errno`` as the kernel gave it (``errno.ENOENT`` …), ``path`` as the caller named it."""

    def __init__(self, errno: int, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.errno = errno
        self.path = path

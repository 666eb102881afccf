"""What can go wrong with a sandbox, by whose fault it is.

SandboxError
├── SpecError               the caller asked for something impossible
├── RuntimeUnavailable      the machine cannot run sandboxes (no daemon, no toolbox); the message says the remedy
├── ImageError              an image is missing or does not build
├── BootError               a sandbox did not answer before its boot deadline
├── SandboxGone             the tool server no longer answers: killed, out of memory, or removed
├── ProtocolError           the tool server's bytes make no sense; the sandbox is not to be trusted further
└── PathError               a file operation was refused inside the sandbox; ordinary data for a tool
"""


class SandboxError(Exception):
    """Root of the tree."""


class SpecError(SandboxError):
    pass


class RuntimeUnavailable(SandboxError):
    pass


class ImageError(SandboxError):
    pass


class BootError(SandboxError):
    pass


class SandboxGone(SandboxError):
    """``out_of_memory``: what ran inside drove it into its memory limit, so that the machine is not to blame."""

    def __init__(self, message: str, *, out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


class ProtocolError(SandboxError):
    pass


class PathError(SandboxError):
    """``errno`` as the kernel gave it (``errno.ENOENT`` …), ``path`` as the caller named it."""

    def __init__(self, errno: int, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.errno = errno
        self.path = path

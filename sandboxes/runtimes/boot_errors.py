"""Classify failed boots by whose fault they are."""

import re
from collections.abc import Mapping

from sandboxes.docker_engine.api import EngineError
from sandboxes.errors import BootError, SnapshotError, SpecError
from sandboxes.spec import SandboxSpec

VARIABLE_BYTES = 128 * 1024 - 1
"""The kernel's limit of one variable (MAX_ARG_STRLEN of execve(2)), without its zero byte."""
ENVIRONMENT_BYTES = 1024 * 1024
"""Half of the kernel's limit for arguments and environment at the usual stack limit; commands need the other half."""
PATH_BYTES = 4095
QUOTED = 80

_CAUSED_BY_IMAGE = re.compile(
    r"not a directory|too many (?:levels of symbolic )?links|file name too long|rootfs/\S+ no such file|chdir"
    r"|unable to find (?:user|group)|uids and gids must be in range|setenv",
    re.IGNORECASE,
)
"""Errors of the daemon and the OCI runtimes that an image's files, user or variables cause."""


def check_demands(spec: SandboxSpec, env: Mapping[str, str], workdir: str) -> None:
    """Raise SpecError if no process can have this environment or directory. ``env``, ``workdir``: the image's."""
    variables = {**env, **spec.environment}
    for name, value in variables.items():
        if not name or "\0" in name + value:
            raise SpecError(f"{spec.image}: variable {name[:QUOTED]!r} has no name or a zero byte; remove it")
        if _size(name, value) > VARIABLE_BYTES:
            raise SpecError(
                f"{spec.image}: variable {name[:QUOTED]!r} is longer than {VARIABLE_BYTES} bytes; shorten it"
            )
    if sum(_size(name, value) + 1 for name, value in variables.items()) > ENVIRONMENT_BYTES:
        raise SpecError(f"{spec.image}: its variables are longer than {ENVIRONMENT_BYTES} bytes together; remove some")
    if not workdir.startswith("/") or "\0" in workdir or len(workdir.encode(errors="replace")) > PATH_BYTES:
        raise SpecError(f"{spec.image}: WORKDIR {workdir[:QUOTED]!r} is not an absolute path; set workdir")


def classify_boot_failure(
    error: BaseException, spec: SandboxSpec, boot_timeout_s: float, *, copied: bool
) -> BaseException:
    """Return the error to raise for a failed boot. On ``copied`` files, errors of the image become SnapshotError."""
    if isinstance(error, TimeoutError):
        return BootError(f"a sandbox of {spec.image} did not answer in {boot_timeout_s:g} s; raise the boot time-out")
    if isinstance(error, EngineError):
        error = BootError(f"a sandbox of {spec.image} did not start: {error.message}")
    if isinstance(error, BootError) and _CAUSED_BY_IMAGE.search(str(error)):
        error = SpecError(f"{error}; the image's own files, user or variables prevent its start")
    if copied and isinstance(error, BootError | SpecError):
        return SnapshotError(f"on copied files: {error}", unfit=isinstance(error, SpecError))
    return error


def _size(name: str, value: str) -> int:
    return len(f"{name}={value}".encode(errors="replace"))

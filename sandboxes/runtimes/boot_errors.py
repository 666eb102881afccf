"""Why a sandbox does not come up, by whose fault that is."""

import re
from collections.abc import Mapping

from sandboxes.docker_engine.api import EngineError
from sandboxes.errors import BootError, SnapshotError, SpecError
from sandboxes.spec import SandboxSpec

VARIABLE_BYTES = 128 * 1024 - 1
"""The kernel's limit (MAX_ARG_STRLEN of execve(2)), its zero byte apart."""
ENVIRONMENT_BYTES = 1024 * 1024
"""Half of what the kernel leaves to arguments and environment at the usual limit of a stack; commands need the rest."""
PATH_BYTES = 4095
QUOTED = 80

_IMAGES_DOING = re.compile(
    r"not a directory|too many (?:levels of symbolic )?links|file name too long|rootfs/\S+ no such file|chdir"
    r"|unable to find (?:user|group)|uids and gids must be in range|setenv",
    re.IGNORECASE,
)
"""What the daemon and the OCI runtimes say of what stands in the way inside, and of users that are none."""


def check_demands(spec: SandboxSpec, env: Mapping[str, str], workdir: str) -> None:
    """``env`` and ``workdir``: those of its image. Raises SpecError for what no process can have."""
    whole = {**env, **spec.environment}
    for name, value in whole.items():
        if not name or "\0" in name + value:
            raise SpecError(f"{spec.image}: the variable {name[:QUOTED]!r} has no name, or a zero byte")
        if _size(name, value) > VARIABLE_BYTES:
            raise SpecError(f"{spec.image}: the variable {name[:QUOTED]!r} is longer than {VARIABLE_BYTES} bytes")
    if sum(_size(name, value) + 1 for name, value in whole.items()) > ENVIRONMENT_BYTES:
        raise SpecError(f"{spec.image}: its variables are longer than {ENVIRONMENT_BYTES} bytes together")
    if not workdir.startswith("/") or "\0" in workdir or len(workdir.encode(errors="replace")) > PATH_BYTES:
        raise SpecError(f"{spec.image}: its WORKDIR {workdir[:QUOTED]!r} is not the absolute path of a directory")


def why_not_booted(error: BaseException, spec: SandboxSpec, boot_timeout_s: float, *, copied: bool) -> BaseException:
    """What to raise of a boot that failed. Where files were copied they are to blame if the image would be."""
    if isinstance(error, TimeoutError):
        return BootError(f"a sandbox of {spec.image} did not answer in {boot_timeout_s:g} s")
    if isinstance(error, EngineError):
        error = BootError(f"a sandbox of {spec.image} did not start: {error.message}")
    if isinstance(error, BootError) and _IMAGES_DOING.search(str(error)):
        error = SpecError(f"{error}; the image itself is in the way")
    if copied and isinstance(error, BootError | SpecError):
        return SnapshotError(f"on copied files: {error}", unfit=isinstance(error, SpecError))
    return error


def _size(name: str, value: str) -> int:
    return len(f"{name}={value}".encode(errors="replace"))

"""Find the OCI runtimes of this machine: crun, which is faster, and runc, which comes with Docker."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.oci import starter
from sandboxes.runtimes.oci.seccomp_filter import compile_filter

PROGRAMS = ("crun", "runc")
FURTHER_DIRECTORIES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec/docker")
_MFD_EXEC = 0x10
"""Flag of memfd_create(2), since Linux 6.3."""


@dataclass(frozen=True, slots=True)
class OciProgram:
    """An OCI runtime. ``compiled_filter``: seccomp filter in base64; None: it compiles the profile at each start.

    ``is_crun``: it needs only the cgroup hierarchies of a sandbox, where runc needs all, and allows any bind in /proc.
    ``loaded_once``: each start is a fork of a loaded process instead of an exec.
    """

    path: Path
    compiled_filter: str | None
    is_crun: bool
    loaded_once: bool = False

    def command(self, name: str, pid_file: str) -> list[str | Path]:
        """Return the command that starts sandbox ``name`` from its bundle. The init process inherits descriptor 3."""
        bundle = starter.DISK / name
        return [
            self.path,
            "--root",
            starter.STATE,
            "run",
            "--detach",
            "--no-new-keyring",
            "--preserve-fds",
            "1",
            "--pid-file",
            bundle / pid_file,
            "--bundle",
            bundle,
            name,
        ]


def find_programs(names: Sequence[str]) -> Iterator[OciProgram]:
    """Yield the programs among ``names`` that are installed. crun comes twice: loaded once, then run at each start."""
    for name in names:
        path = shutil.which(name) or shutil.which(name, path=":".join(FURTHER_DIRECTORIES))
        if path is None:
            continue
        try:
            compiled_filter = compile_filter() if name == "crun" else None
        except RuntimeUnavailable:
            compiled_filter = None
        program = OciProgram(Path(path), compiled_filter, is_crun=name == "crun")
        if name == "crun":
            yield replace(program, loaded_once=True)
        yield program


def sealed_copy(path: Path) -> int:
    """Return a descriptor of a sealed copy of a program, or of the program itself if no copy can be made.

    OCI runtimes run from such a copy, so that no sandbox can write to their file through ``/proc``. They make it at
    each start unless they already run from one. Raises OSError.
    """
    content = path.read_bytes()
    for flags in (_MFD_EXEC, 0):
        try:
            copy = os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        except OSError as error:
            if error.errno == errno.EINVAL:
                continue
            break  # the machine forbids executable memfds
        with open(copy, "wb", closefd=False) as file:
            file.write(content)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
        return copy
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

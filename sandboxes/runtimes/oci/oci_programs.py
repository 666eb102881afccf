"""The OCI runtimes that this machine has: crun, which is faster, and runc, which comes with every Docker."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.oci import starter
from sandboxes.runtimes.oci.seccomp_filter import compiled

PROGRAMS = ("crun", "runc")
FURTHER_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec/docker")
_MFD_EXEC = 0x10
"""memfd_create(2), since Linux 6.3."""


@dataclass(frozen=True, slots=True)
class OciProgram:
    """``compiled_filter``: in base64; None: it compiles the seccomp profile itself, at each start. ``is_crun``: it
    makes do with the control groups that a sandbox wants, where another has to see all that the machine has, and binds
    anything over what is in /proc. ``loaded_once``: a start is a fork of it, not a process that begins."""

    path: Path
    compiled_filter: str | None
    is_crun: bool
    loaded_once: bool = False

    def command(self, name: str, pid_file: str) -> list[str | Path]:
        """Start the bundle of sandbox ``name``; the first process inherits descriptor 3."""
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
    """Those of ``names`` that are here."""
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=":".join(FURTHER_PLACES))
        if found is None:
            continue
        try:
            compiled_filter = compiled() if name == "crun" else None
        except RuntimeUnavailable:
            compiled_filter = None
        program = OciProgram(Path(found), compiled_filter, is_crun=name == "crun")
        if name == "crun":
            yield replace(program, loaded_once=True)
        yield program


def sealed(path: Path) -> int:
    """A descriptor of a copy that nobody can write to.

    OCI runtimes run from one, so that no sandbox can write to them through ``/proc``, and make it at each start; this
    is made once. Where it cannot be, it is the file itself. Raises OSError.
    """
    content = path.read_bytes()
    for flags in (_MFD_EXEC, 0):
        try:
            copy = os.memfd_create(path.name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
        except OSError as error:
            if error.errno == errno.EINVAL:
                continue
            break  # the machine runs nothing that has no place on a disk
        with open(copy, "wb", closefd=False) as file:
            file.write(content)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
        return copy
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

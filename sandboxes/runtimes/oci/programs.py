"""The OCI runtimes that this machine has: crun, which is faster, and runc, which comes with every Docker."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.oci import starter
from sandboxes.runtimes.oci.filter import compiled

PROGRAMS = ("crun", "runc")
FURTHER_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec/docker")


@dataclass(frozen=True, slots=True)
class Program:
    """``compiled_filter`` None: it compiles the seccomp profile itself, at each start. ``frugal``: it makes do with the
    control groups that a sandbox wants; another has to see all that the machine has."""

    path: Path
    compiled_filter: bytes | None
    frugal: bool

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


def find_programs(names: Sequence[str]) -> Iterator[Program]:
    """Those of ``names`` that are here."""
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=":".join(FURTHER_PLACES))
        if found is None:
            continue
        try:
            compiled_filter = compiled() if name == "crun" else None
        except RuntimeUnavailable:
            compiled_filter = None
        yield Program(Path(found), compiled_filter, frugal=name == "crun")

"""Where an owner's sandboxes are kept: a directory each, bounded, copied and removed at a cost that does not grow with
what it holds.

``QuotaDisk`` is a btrfs file system in a sparse file. Each sandbox is a subvolume: making one, setting its limit and
removing it take less than 0.1 ms each, and a copy (a snapshot) shares all blocks. It is mounted nowhere (see
``mounts``), so a death leaves no mount; its loop device goes with the last user. ``PlainDisk`` is a directory: no
limits, and copies and removals as slow as what they hold is large.
"""

import errno
import os
import subprocess
from pathlib import Path
from typing import Protocol

from sandboxes.errors import DiskFull, RuntimeUnavailable
from sandboxes.linux.remove_tree import remove_tree
from sandboxes.runtimes.oci.storage import mounts
from sandboxes.runtimes.oci.storage.btrfs import QuotaDisk

COPY_S = 120.0
"""So long a copy may take where it is a copy of every byte."""
SCARCE_MIB = 256


class SandboxDisk(Protocol):
    @property
    def path(self) -> Path:
        """Of the directory that holds all, as this process reaches it."""
        ...

    @property
    def bounded(self) -> bool: ...

    def tree(self) -> int:
        """A detached mount of it, the caller's to close."""
        ...

    def names(self) -> set[str]:
        """Of the directories on it."""
        ...

    def make(self, name: str, limit_mib: int) -> None:
        """At most so much may be written there; less where others could be left without. Raises DiskFull."""
        ...

    def copy(self, source: str, name: str, limit_mib: int) -> None:
        """What the two share counts against the limit of the one who wrote it, as long as either holds it.

        Raises DiskFull.
        """
        ...

    def remove(self, name: str) -> None:
        """Nothing there is no error."""
        ...

    def unwritten_mib(self, name: str) -> int:
        """So much of what was written there a copy would wait for."""
        ...

    def write_down(self, name: str) -> None:
        """Much of that, as far as its limit allows; blocks. Nothing there is no error."""
        ...

    def has_leavings(self) -> bool:
        """Whether something was removed whose room somebody may miss."""
        ...

    def is_short(self) -> bool:
        """Whether what was removed is needed back."""
        ...

    def reclaim(self) -> None:
        """What was removed can be written anew when this returns; blocks."""
        ...

    def failure(self) -> str:
        """Why nothing on it can be relied on any more; "" where it can."""
        ...

    def close(self) -> None: ...


def open_disk(home: Path, places: int) -> tuple[SandboxDisk, str]:
    """The disk of the owner whose directory is ``home``, and what it lacks ("" for nothing). Blocks for some 0.1 s.

    ``places``: for so many sandboxes. Raises DiskFull.
    """
    try:
        disk = QuotaDisk(home, places)
    except DiskFull:  # without limits one sandbox would take what little there is
        raise
    except RuntimeUnavailable as error:
        return PlainDisk(home / "disk"), str(error)
    return disk, "; ".join(filter(None, (_scarce(disk.share_mib, places, home), disk.lack)))


def _scarce(share_mib: int, places: int, home: Path) -> str:
    if share_mib >= SCARCE_MIB:
        return ""
    return f"each of {places} sandboxes may write {share_mib} MiB; free some of the disk of {home}, or give fewer slots"


class PlainDisk:
    bounded = False

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o755, exist_ok=True)
        self.path = path

    def tree(self) -> int:
        return mounts.clone(self.path)

    def names(self) -> set[str]:
        return set(os.listdir(self.path))

    def make(self, name: str, limit_mib: int) -> None:
        (self.path / name).mkdir(mode=0o755)

    def copy(self, source: str, name: str, limit_mib: int) -> None:
        command = ["cp", "-a", "--reflink=auto", str(self.path / source), str(self.path / name)]
        try:
            copied = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COPY_S)
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, f"a copy took more than {COPY_S:g} s") from None
        if copied.returncode != 0:
            raise OSError(errno.EIO, f"a copy failed: {copied.stderr.strip()[-200:]}")

    def remove(self, name: str) -> None:
        remove_tree(self.path / name)

    def unwritten_mib(self, name: str) -> int:
        return 0

    def write_down(self, name: str) -> None:
        pass

    def has_leavings(self) -> bool:
        return False

    def is_short(self) -> bool:
        return False

    def reclaim(self) -> None:
        pass

    def failure(self) -> str:
        return ""

    def close(self) -> None:
        pass

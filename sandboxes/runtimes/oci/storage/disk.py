"""The disk of an owner's sandboxes: a directory for each, with a limit, copied and removed at a constant cost.

``QuotaDisk`` is a btrfs file system in a sparse file. Each sandbox is a subvolume: to create it, to set its limit and
to remove it takes less than 0.1 ms each, and a copy (a snapshot) shares all blocks. The file system is mounted nowhere
(see ``mounts``), so a death leaves no mount, and its loop device goes with the last user. ``PlainDisk`` is a directory:
without limits, and with the cost of copies and removals in proportion to their size.
"""

from pathlib import Path
from typing import Protocol

from sandboxes.errors import DiskFull, RuntimeUnavailable
from sandboxes.runtimes.oci.storage.plain_disk import PlainDisk
from sandboxes.runtimes.oci.storage.quota_disk import QuotaDisk

SCARCE_MIB = 256


class SandboxDisk(Protocol):
    """A disk with one directory for each sandbox or snapshot."""

    @property
    def path(self) -> Path:
        """The directory of all sandboxes, as this process reaches it."""
        ...

    @property
    def bounded(self) -> bool: ...

    def clone_mount(self) -> int:
        """Return a new detached mount of the disk, which the caller closes."""
        ...

    def names(self) -> set[str]:
        """Return the names of the directories on it."""
        ...

    def make(self, name: str, limit_mib: int) -> None:
        """Make a directory that may grow to ``limit_mib``, or less if space is scarce. Raises DiskFull."""
        ...

    def copy(self, source: str, name: str, limit_mib: int) -> None:
        """Copy directory ``source`` to ``name``. Shared blocks count against the limit of the one that wrote them.

        Raises DiskFull.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a directory. A missing one is no error."""
        ...

    def dirty_mib(self, name: str) -> int:
        """Return the dirty data of a directory in MiB, for which a copy would wait."""
        ...

    def flush(self, name: str) -> None:
        """Write much of the dirty data, as far as the limit allows. Blocks. A missing directory is no error."""
        ...

    def should_reclaim(self) -> bool:
        """Return True if removed data should be reclaimed in the background."""
        ...

    def needs_reclaim(self) -> bool:
        """Return True if the next sandbox needs the space of removed data."""
        ...

    def reclaim(self) -> None:
        """Wait until the space of removed data can be used again. Blocks."""
        ...

    def failure(self) -> str:
        """Return why no data on the disk is reliable any more, "" if it is."""
        ...

    def close(self) -> None: ...


def open_disk(home: Path, disk_shares: int) -> tuple[SandboxDisk, str]:
    """Open the disk of the owner with directory ``home``. Return it and what it lacks ("" for nothing).

    ``disk_shares``: number of equal shares. Blocks for about 0.1 s. Raises DiskFull.
    """
    try:
        disk = QuotaDisk(home, disk_shares)
    except DiskFull:  # without limits one sandbox could use the little space that is left
        raise
    except RuntimeUnavailable as error:
        return PlainDisk(home / "disk"), str(error)
    return disk, "; ".join(filter(None, (_scarcity_warning(disk.share_mib, disk_shares, home), disk.limits_gap)))


def _scarcity_warning(share_mib: int, disk_shares: int, home: Path) -> str:
    if share_mib >= SCARCE_MIB:
        return ""
    return (
        f"each of {disk_shares} sandboxes can write only {share_mib} MiB; free disk space in {home}, or use fewer slots"
    )

"""Divide a disk among its sandboxes.

The grants add up to at most the disk's size, so a sandbox that fills its grant leaves every other its own. A disk is
divided into a fixed number of shares; further sandboxes are granted little, and only while there is space.
"""

import threading

from sandboxes.errors import DiskFull

RESERVED_FRACTION = 0.2
"""Fraction of a disk that is never granted. It holds what no limit counts, and the slack of btrfs, which divides a disk
into chunks of up to a tenth of it, each for data or for metadata only."""

BEYOND_MIB = 64
"""Grant of a sandbox beyond the number of shares."""


class DiskShares:
    """Grants of one disk, in MiB. Thread-safe."""

    def __init__(self, size_mib: int, disk_shares: int) -> None:
        self._grantable = int(size_mib * (1 - RESERVED_FRACTION))
        self.share = max(1, self._grantable // disk_shares)
        self._granted: dict[str, int] = {}
        self._sum = 0
        self._unreclaimed = 0
        self._lock = threading.Lock()

    def grant(self, name: str, wanted: int, *, backed: int, free: int) -> int:
        """Return what ``name`` may write, at most ``wanted``. Raises DiskFull.

        ``backed``: what can be written in total, given the disk below. ``free``: what can be written now.
        """
        with self._lock:
            remaining = min(self._grantable, backed) - self._sum - self._unreclaimed
            granted = min(wanted, self.share, max(remaining, BEYOND_MIB))
            if granted > remaining and free < 2 * granted:
                raise DiskFull("the disk of the state directory has no space for another sandbox; free some")
            self._set(name, granted)
            return granted

    def granted(self, name: str) -> int:
        return self._granted.get(name, 0)

    def hold(self, name: str) -> None:
        """Grant a full share to an existing directory."""
        with self._lock:
            self._set(name, self.share)

    def release(self, name: str, written: int) -> None:
        """End the grant of ``name``. Its ``written`` blocks are ``unreclaimed`` until ``add_reclaimed``."""
        with self._lock:
            self._unreclaimed += min(written, self._set(name, 0))

    @property
    def unreclaimed(self) -> int:
        """Return the MiB of removed data that cannot be written yet."""
        return self._unreclaimed

    def needs_reclaim(self) -> bool:
        """Return True if unreclaimed blocks are needed for the next share."""
        with self._lock:
            return bool(self._unreclaimed) and self._grantable - self._sum - self._unreclaimed < self.share

    def add_reclaimed(self, mib: int) -> None:
        with self._lock:
            self._unreclaimed -= mib

    def _set(self, name: str, granted: int) -> int:
        """Set a grant. Return the previous one."""
        before = self._granted.pop(name, 0)
        if granted:
            self._granted[name] = granted
        self._sum += granted - before
        return before

"""How much of a disk its sandboxes may write together, and which of them how much.

What is granted adds up to no more than there is, so that a sandbox that writes all that it may leaves each other what
that one was granted. A disk is made for so many sandboxes; those that come beyond them are granted little, and only
while there is some.
"""

import threading

from sandboxes.errors import DiskFull

RESERVED = 0.2
"""So much of a disk is granted to nobody. It holds what no limit counts; and btrfs parts a disk into chunks of up to a
tenth of it, each for files or for tables alone."""

BEYOND_MIB = 64


class DiskQuota:
    """Of one disk, in MiB. Its calls may come from several threads."""

    def __init__(self, size_mib: int, places: int) -> None:
        self._all = int(size_mib * (1 - RESERVED))
        self.share = max(1, self._all // places)
        self._granted: dict[str, int] = {}
        self._sum = 0
        self._leaving = 0
        self._lock = threading.Lock()

    def grant(self, name: str, wanted: int, *, backed: int, free: int) -> int:
        """What ``name`` may write. ``backed``: so much could be written in all, by what there is below the disk;
        ``free``: so much can be written now. Raises DiskFull.
        """
        with self._lock:
            left = min(self._all, backed) - self._sum - self._leaving
            granted = min(wanted, self.share, max(left, BEYOND_MIB))
            if granted > left and free < 2 * granted:
                raise DiskFull("the disk of the state directory has no room for another sandbox; free some")
            self._set(name, granted)
            return granted

    def granted(self, name: str) -> int:
        return self._granted.get(name, 0)

    def hold(self, name: str) -> None:
        """It has its share already."""
        with self._lock:
            self._set(name, self.share)

    def release(self, name: str, written: int) -> None:
        """``name`` is gone; the blocks of what it had written come back later, see ``leaving``."""
        with self._lock:
            self._leaving += min(written, self._set(name, 0))

    @property
    def leaving(self) -> int:
        """Of blocks that nobody's files hold and that cannot be written yet."""
        return self._leaving

    def is_short(self) -> bool:
        """Whether blocks that are to come back are needed for the next share."""
        with self._lock:
            return bool(self._leaving) and self._all - self._sum - self._leaving < self.share

    def came_back(self, blocks: int) -> None:
        with self._lock:
            self._leaving -= blocks

    def _set(self, name: str, granted: int) -> int:
        """What it had before."""
        before = self._granted.pop(name, 0)
        if granted:
            self._granted[name] = granted
        self._sum += granted - before
        return before

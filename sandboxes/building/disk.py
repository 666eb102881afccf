"""How much disk a build has taken: what its steps have written, and the layers that the engine has made since."""

import os
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ENTRY_BYTES = 512
"""The cost of a file beside its blocks: an inode and a directory entry."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes that the build's steps have written, and bytes in other layers that the engine has made since the start.

    Those other layers are the build's copies and all that is built or pulled at the same time.
    """

    steps: int
    layers: int


class DiskMeter:
    """Measure one build. ``root`` is the engine's data root."""

    def __init__(self, root: Path) -> None:
        self._layers = root / "overlay2"
        self._root = root
        self._elsewhere = frozenset(self._names())
        self._free = self._left()

    def has_shrunk(self, least: int) -> bool:
        """Tell whether the file system has lost ``least`` bytes since the last measurement; cheap.

        The most that was free since then counts: what others remove must not hide what the build writes.
        """
        left = self._left()
        self._free = max(self._free, left)
        return self._free - left >= least

    def measure(self, uppers: Collection[Path], process_ids: Iterable[int]) -> "DiskUse":
        """Measure ``uppers``, where steps write, and the deleted files that ``process_ids`` hold open."""
        self._free = self._left()
        mine = {path.parent.name for path in uppers}
        found = set(self._names())
        containers = {name.removesuffix("-init") for name in found if name.endswith("-init")}
        new = {
            name for name in found - self._elsewhere - containers - mine if not name.endswith("-init") and name != "l"
        }
        steps = sum(map(_tree_bytes, uppers)) + sum(map(_deleted_bytes, process_ids))
        return DiskUse(steps, sum(_tree_bytes(self._layers / name / "diff") for name in new))

    def _names(self) -> list[str]:
        with suppress(OSError):
            return os.listdir(self._layers)
        return []

    def _left(self) -> int:
        """Free bytes, and free inodes at what each costs."""
        with suppress(OSError):
            told = os.statvfs(self._root)
            return told.f_bfree * told.f_frsize + told.f_ffree * ENTRY_BYTES
        return 0


def _tree_bytes(top: Path) -> int:
    total, places = 0, [str(top)]
    while places:
        with suppress(OSError), os.scandir(places.pop()) as entries:
            for entry in entries:
                total += ENTRY_BYTES
                with suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    total += about.st_blocks * 512
                    if stat.S_ISDIR(about.st_mode):
                        places.append(entry.path)
    return total


def _deleted_bytes(process_id: int) -> int:
    total = 0
    with suppress(OSError), os.scandir(f"/proc/{process_id}/fd") as entries:
        for entry in entries:
            with suppress(OSError):
                about = os.stat(entry.path)
                if about.st_nlink == 0 and stat.S_ISREG(about.st_mode):
                    total += about.st_blocks * 512
    return total

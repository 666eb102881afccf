"""How much disk a build has taken: what its steps have written, and the layers that BuildKit's copies have made.

Storage is ``overlay2``. A layer's directory has the name that its maker gave it: BuildKit's ids have 25 characters;
pulls, commits and containers have 64 hexadecimal ones. So only builds are counted. ``lower`` in a layer lists all
layers below it, which tells whose it is if a step of a build is above or below. Other layers, copies without a step in
their stage, are shared out by the number of copies that this build's progress has shown.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ENTRY_BYTES = 512
"""The cost of a file beside its blocks: an inode and a directory entry."""
LOADS = 3
"""Layers without a parent that a build may have loaded from its context: the context, Dockerfile and .dockerignore."""

_NOT_BUILT = re.compile(r"[0-9a-f]{64}(-init)?|l")


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Bytes that the build's steps have written, and bounds of the bytes that its copies have.

    The bounds differ if other builds copy at the same time.
    """

    steps: int
    copies_least: int
    copies_most: int


@dataclass(frozen=True, slots=True)
class Layer:
    """``link`` is the layer's short name; ``lower`` has those of the layers below it."""

    link: str
    lower: frozenset[str]


@dataclass(frozen=True, slots=True)
class Uppers:
    """Directories that steps write to: those of this build, and those of other builds."""

    own: Collection[Path]
    others: Collection[Path]


class DiskMeter:
    """Measure one build. ``root`` is the engine's data root."""

    def __init__(self, root: Path) -> None:
        self._layers = root / "overlay2"
        self._root = root
        self._earlier = frozenset(self._names())
        self._known: dict[str, Layer] = {}
        self._free = self._left()

    def has_shrunk(self, least: int) -> bool:
        """Tell whether the file system has lost ``least`` bytes since the last measurement; cheap.

        The most that was free since then counts: what others remove must not hide what the build writes.
        """
        left = self._left()
        self._free = max(self._free, left)
        return self._free - left >= least

    def measure(self, uppers: Uppers, process_ids: Iterable[int], copies: int) -> DiskUse:
        """Measure the build's steps, the deleted files that ``process_ids`` hold open, and its ``copies`` layers."""
        self._free = self._left()
        own, others = ({path.parent.name for path in each} for each in (uppers.own, uppers.others))
        steps = sum(map(_tree_bytes, uppers.own)) + sum(map(_deleted_bytes, process_ids))
        mine, unclear = self._share_out(own, others)
        sizes = {name: _tree_bytes(self._layers / name / "diff") for name in mine | unclear}
        certain = sum(sizes[name] for name in mine)
        left = max(0, copies - len(mine))
        loads = set(sorted((name for name in unclear if not self._look(name).lower), key=sizes.__getitem__)[:LOADS])
        rest = sorted(sizes[name] for name in unclear - loads)
        return DiskUse(steps, certain + sum(rest[:left]), certain + sum(rest[::-1][:left]))

    def _share_out(self, own: set[str], others: set[str]) -> tuple[set[str], set[str]]:
        """Return the layers of copies that are this build's, and those that may be."""
        new = {name for name in self._names() if name not in self._earlier and not _NOT_BUILT.fullmatch(name)}
        mine: set[str] = set()
        unclear: set[str] = set()
        for name in new - own - others:
            if self._is_akin(name, own):
                mine.add(name)
            elif not self._is_akin(name, others):
                unclear.add(name)
        return mine, unclear

    def _is_akin(self, name: str, steps: set[str]) -> bool:
        """Tell whether a layer is below or above one of ``steps``."""
        layer = self._look(name)
        found = map(self._look, steps)
        return any(step.link in layer.lower or layer.link in step.lower for step in found)

    def _look(self, name: str) -> Layer:
        """Read a layer's place among the others, which stays the same once both files are there."""
        if name in self._known:
            return self._known[name]
        lower: frozenset[str] = frozenset()
        try:
            link = (self._layers / name / "link").read_text()
            with suppress(FileNotFoundError):  # the lowest layer of a stage, or one in the making
                lower = frozenset(
                    each.removeprefix("l/") for each in (self._layers / name / "lower").read_text().split(":")
                )
        except OSError:  # removed, or in the making
            link = ""
        layer = Layer(link or f"?{name}", lower)
        if link and lower:
            self._known[name] = layer
        return layer

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

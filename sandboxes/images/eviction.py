"""Making room: which images go when the disk is nearly full, and taking them away.

Least recently used first; never one that a container runs on, that somebody needs, or that is not the farm's. The
farm's are those whose name begins with a prefix and those that it pulled itself. An image that others are built on
frees nothing while they are there, so it goes after the last of them or not at all. Neither does an image of which the
builder's cache still holds the layers, so that is pruned as well: of what no image shares, and no more.

On a disk without a free byte Docker can remove nothing, as it writes down first what it removes. So a little of the
disk is held back, and let go of for as long as room is made. What a build had made that met the end of the disk its
builder lets go of at once, or, where it cannot write that down, never; so its databases have their blocks beforehand.
"""

import ctypes
import heapq
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import ImageError
from sandboxes.images.last_used import ImageUse, ImageUses
from sandboxes.images.store import ImageInfo, ImageStore

Remove = Callable[[str], Awaitable[bool]]
"""Take an image away; False where it must stay after all."""

Release = Callable[[], Awaitable[None]]
"""Let go of images that are held only because they may be used again soon."""

RESERVE_BYTES = 64 * 1024 * 1024
RESERVE_SHARE = 64
"""Held back is one part in so many of a disk, and no more than the bytes: Docker's notes are a few MiB."""

DATABASES = "buildkit/*.db"
GROWTH_BYTES = 1024 * 1024
"""By so much each of them can grow on a full disk. A build writes some KiB, and every minute there is as much again."""

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2)."""

log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Used fractions of the disk. Above ``high`` images go, until it is below ``low``."""

    high: float = 0.85
    low: float = 0.75


@dataclass(frozen=True, slots=True)
class DiskUsage:
    used_bytes: int
    free_bytes: int

    @property
    def fullness(self) -> float:
        """What is used of what an ordinary user can use, as df(1) has it."""
        return self.used_bytes / max(self.used_bytes + self.free_bytes, 1)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The images of a machine, who needs them, and when they were used last."""

    images: Sequence[ImageInfo]
    uses: Mapping[str, ImageUse]
    occupied: Collection[str]
    """Digests of images that containers were made of."""

    def used_at(self, image: ImageInfo) -> float:
        use = self.uses.get(image.name)
        return max(image.tagged_at, use.at if use else 0.0)

    def is_of_state_dir(self, image: ImageInfo) -> bool:
        """Whether the farm of this state directory made, pulled or used the image; another farm of the daemon did if
        not."""
        return image.name in self.uses

    def own_bytes(self, gone: Sequence[ImageInfo]) -> int:
        """Return how many bytes the removal of ``gone`` can free: what they hold beyond the images that they are built
        on. Layers that they share with further images are counted too."""
        below = bases(self.images)
        size = {image.name: image.size_bytes for image in self.images}
        return sum(
            image.size_bytes - max((size[base] for base in below[image.name]), default=0)
            for image in {image.digest: image for image in gone}.values()
        )

    def is_ours(self, image: ImageInfo, prefix: str) -> bool:
        use = self.uses.get(image.name)
        return image.name.startswith(prefix) or (use is not None and use.pulled)

    def free_to_go(self, prefix: str) -> list[ImageInfo]:
        """Ours that no container runs on, the one used last at the end."""
        ours = (i for i in self.images if self.is_ours(i, prefix) and i.digest not in self.occupied)
        return sorted(ours, key=lambda image: (self.used_at(image), image.name))


def bases(images: Sequence[ImageInfo]) -> dict[str, frozenset[str]]:
    """Name → names of the images that it is built on: those whose layers are the first of its own, and fewer."""
    by_layers: dict[tuple[str, ...], set[str]] = {}
    for image in images:
        by_layers.setdefault(image.layers, set()).add(image.name)
    return {
        image.name: frozenset().union(
            *(by_layers.get(image.layers[:count], ()) for count in range(1, len(image.layers)))
        )
        for image in images
    }


def departures(holdings: Holdings, candidates: Sequence[ImageInfo]) -> list[ImageInfo]:
    """The order in which ``candidates`` go; those that something else is built on are left out."""
    below = bases(holdings.images)
    standing_on = Counter(base for names in below.values() for base in names)
    by_name = {image.name: image for image in candidates}
    ready = [(holdings.used_at(image), name) for name, image in by_name.items() if not standing_on[name]]
    heapq.heapify(ready)
    order: list[ImageInfo] = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(by_name[name])
        for base in below[name]:
            standing_on[base] -= 1
            if base in by_name and not standing_on[base]:
                heapq.heappush(ready, (holdings.used_at(by_name[base]), base))
    return order


class ImageRetention:
    """Makes room on one daemon's disk. ``prefix``: what the names of images begin with that the farm makes itself."""

    def __init__(
        self,
        images: ImageStore,
        uses: ImageUses,
        *,
        prefix: str,
        marks: Watermarks | None = None,
        release: Release | None = None,
    ) -> None:
        self._images = images
        self._uses = uses
        self._prefix = prefix
        self._marks = marks or Watermarks()
        self._release = release
        self._reserve = DiskReserve()

    def touch(self, image: str) -> None:
        """The image is used."""
        self._uses.note(image)

    async def remove(self, image: str) -> bool:
        """False where it must stay after all."""
        try:
            gone = await self._images.remove(image)
        except ImageError as error:
            log.warning("%s", error)
            return False
        if gone:
            self._uses.forget(image)
        return gone

    async def holdings(self) -> Holdings:
        images = await self._images.list()
        self._uses.forget_all_but({image.name for image in images}, time.time())
        return Holdings(images, self._uses.all(), await self._images.occupied())

    def free_to_go(self, holdings: Holdings) -> list[ImageInfo]:
        return holdings.free_to_go(self._prefix)

    async def evict(self, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        """Where the disk is fuller than the high mark: what had to go until it was below the low one."""
        root = await self._images.root()
        if root is None:
            return []
        if read_disk(root).fullness < self._marks.high:
            self._reserve.hold(root)
            return []
        with self._reserve.lent(root):
            await self._images.prune_cache()
            return await self._free(root, 1 - self._marks.low, remove, needed)

    async def free_share(self) -> float:
        """What of the disk is free; 0 where that is not to be seen from here."""
        root = await self._images.root()
        return 0.0 if root is None else 1 - read_disk(root).fullness

    async def make_room(self, free: float, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        """For one who has just met the end of the disk, of which ``free`` was free as he began: until it is below the
        low mark, and twice as much is free. What has come of that may go only while this looks."""
        root = await self._images.root()
        if root is None:
            return []
        with self._reserve.lent(root):
            await self._images.prune_cache()
            return await self._free(root, max(1 - self._marks.low, min(2 * free, 1.0)), remove, needed)

    def close(self) -> None:
        self._reserve.let_go()

    async def _free(
        self, root: Path, share: float, remove: Remove, needed: Callable[[], Collection[str]]
    ) -> list[ImageInfo]:
        """Until ``share`` of the disk is free, or nothing is left that may go."""

        async def enough() -> bool:
            await self._images.prune_cache()
            return 1 - read_disk(root).fullness >= share

        before = read_disk(root).fullness
        if 1 - before >= share:
            return []
        if self._release is not None:
            await self._release()
        holdings = await self.holdings()
        spared = needed()
        candidates = [image for image in self.free_to_go(holdings) if image.name not in spared]
        gone = await self.remove_all(departures(holdings, candidates), holdings, remove, enough)
        left = read_disk(root).fullness
        log.info("Docker's disk was %.0f%% full; %d images went, and it is %.0f%%", 100 * before, len(gone), 100 * left)
        return gone

    async def remove_all(
        self,
        order: Sequence[ImageInfo],
        holdings: Holdings,
        remove: Remove,
        enough: Callable[[], Awaitable[bool]] | None = None,
    ) -> list[ImageInfo]:
        """Take images away in this order until it is enough; which have gone. One that stays keeps those below it."""
        below = bases(holdings.images)
        kept: set[str] = set()
        gone: list[ImageInfo] = []
        for image in order:
            if image.name in kept:
                continue
            if await remove(image.name):
                gone.append(image)
                if enough is not None and await enough():
                    break
            else:
                kept |= below[image.name]
        return gone


class DiskReserve:
    """A part of one disk, held in a file without a name: when its process ends, however it does, it is free."""

    def __init__(self) -> None:
        self._file: int | None = None

    def hold(self, root: Path) -> None:
        """Of the disk that ``root`` is on, and, anew each time, room for what its builder writes down; nothing where it
        is not ours to write to, or where nothing would be left for others who clear it."""
        try:
            usage = shutil.disk_usage(root)
            size = min(RESERVE_BYTES, usage.total // RESERVE_SHARE)
            if usage.free < 2 * size:
                return
            for database in root.glob(DATABASES):
                with suppress(OSError):  # a file system that cannot, or a database that goes
                    _give_blocks(database, GROWTH_BYTES)
            if self._file is None:
                self._file = os.open(root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            log.debug("nothing of the disk of %s is held back: %s", root, error)
            self.let_go()

    def let_go(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @contextmanager
    def lent(self, root: Path) -> Iterator[None]:
        """Free for as long as this lasts."""
        self.let_go()
        try:
            yield
        finally:
            self.hold(root)


def _give_blocks(path: Path, further: int) -> None:
    """To all of a file, which may have holes, and to ``further`` bytes behind its end; what it holds, and how long it
    is, stays. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size + further
        if _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(fd)


def read_disk(path: Path) -> DiskUsage:
    usage = shutil.disk_usage(path)
    return DiskUsage(usage.used, usage.free)

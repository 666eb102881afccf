"""Evict images when Docker's disk is nearly full.

The least recently used image goes first. An image stays if a container uses it, if the caller needs it, or if it is not
the farm's. The farm's images are those whose name begins with a prefix and those that the farm pulled. Removal of an
image frees nothing while other images are built on it, so it goes after the last of them or stays. The builder's cache
also holds layers, so cache entries that no image shares are pruned.

Docker writes to its database before it removes anything, so it cannot remove images from a completely full disk.
Therefore a small reserve of the disk is held and released during an eviction. Likewise BuildKit's databases get blocks
in advance: otherwise BuildKit could not record the removal of a build that filled the disk, and would never free it.
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
"""Removes an image; returns False if the image must stay."""

Release = Callable[[], Awaitable[None]]
"""Releases images that are held only for likely reuse."""

RESERVE_BYTES = 64 * 1024 * 1024
RESERVE_SHARE = 64
"""The reserve is this fraction (1/N) of the disk, at most RESERVE_BYTES: Docker's own writes are a few MiB."""

DATABASES = "buildkit/*.db"
GROWTH_BYTES = 1024 * 1024
"""Bytes by which each database may grow on a full disk.

A build writes some KiB; the blocks are extended every minute.
"""

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE of fallocate(2)."""

log = logging.getLogger(__name__)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Used fractions of the disk: eviction starts above ``high`` and stops below ``low``."""

    high: float = 0.85
    low: float = 0.75


@dataclass(frozen=True, slots=True)
class DiskUsage:
    used_bytes: int
    free_bytes: int

    @property
    def fullness(self) -> float:
        """The used fraction of the space that is available to ordinary users, as in df(1)."""
        return self.used_bytes / max(self.used_bytes + self.free_bytes, 1)


@dataclass(frozen=True, slots=True)
class Holdings:
    """The images of a machine, their last uses, and which of them containers use."""

    images: Sequence[ImageInfo]
    uses: Mapping[str, ImageUse]
    occupied: Collection[str]
    """Digests of images with containers."""

    def used_at(self, image: ImageInfo) -> float:
        use = self.uses.get(image.name)
        return max(image.tagged_at, use.at if use else 0.0)

    def is_of_state_dir(self, image: ImageInfo) -> bool:
        """Return whether the farm of this state directory built, pulled or used the image.

        If not, another farm with the same daemon did.
        """
        return image.name in self.uses

    def own_bytes(self, gone: Sequence[ImageInfo]) -> int:
        """Return how many bytes the removal of ``gone`` can free: their sizes without the images that they are built
        on.

        Layers shared with further images are counted too.
        """
        bases_of = bases(self.images)
        size = {image.name: image.size_bytes for image in self.images}
        return sum(
            image.size_bytes - max((size[base] for base in bases_of[image.name]), default=0)
            for image in {image.digest: image for image in gone}.values()
        )

    def is_ours(self, image: ImageInfo, prefix: str) -> bool:
        use = self.uses.get(image.name)
        return image.name.startswith(prefix) or (use is not None and use.pulled)

    def free_to_go(self, prefix: str) -> list[ImageInfo]:
        """Return the farm's images without containers, the most recently used one last."""
        ours = (i for i in self.images if self.is_ours(i, prefix) and i.digest not in self.occupied)
        return sorted(ours, key=lambda image: (self.used_at(image), image.name))


def bases(images: Sequence[ImageInfo]) -> dict[str, frozenset[str]]:
    """Map each name to the names of its base images: those whose layers are a proper prefix of its layers."""
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
    """Return ``candidates`` in the order of eviction, without those that other images are built on."""
    bases_of = bases(holdings.images)
    dependents = Counter(base for names in bases_of.values() for base in names)
    by_name = {image.name: image for image in candidates}
    ready = [(holdings.used_at(image), name) for name, image in by_name.items() if not dependents[name]]
    heapq.heapify(ready)
    order: list[ImageInfo] = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(by_name[name])
        for base in bases_of[name]:
            dependents[base] -= 1
            if base in by_name and not dependents[base]:
                heapq.heappush(ready, (holdings.used_at(by_name[base]), base))
    return order


class ImageRetention:
    """Evicts images of one daemon. ``prefix``: the beginning of the names of images that the farm builds."""

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
        """Record a use of the image."""
        self._uses.note(image)

    async def remove(self, image: str) -> bool:
        """Remove an image; return False if it must stay."""
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

    async def own_bytes(self) -> int:
        """Return the size of the farm's images, without the images that they are built on."""
        holdings = await self.holdings()
        return holdings.own_bytes([image for image in holdings.images if holdings.is_ours(image, self._prefix)])

    async def evict(self, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        """If the disk is fuller than the high mark, evict images until it is below the low mark; return the evicted
        images.
        """
        root = await self._images.root()
        if root is None:
            return []
        if read_disk(root).fullness < self._marks.high:
            self._reserve.hold(root)
            return []
        with self._reserve.released(root):
            await self._images.prune_cache()
            return await self._free(root, 1 - self._marks.low, remove, needed)

    async def free_share(self) -> float:
        """Return the free fraction of the disk; 0 if the disk is not visible from this machine."""
        root = await self._images.root()
        return 0.0 if root is None else 1 - read_disk(root).fullness

    async def make_room(self, free: float, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        """Evict images after a caller filled the disk, until it is below the low mark and ``2 * free`` is free.

        ``free`` is the free fraction when the caller began. The caller's partial results may be removed only during
        this call.
        """
        root = await self._images.root()
        if root is None:
            return []
        with self._reserve.released(root):
            await self._images.prune_cache()
            return await self._free(root, max(1 - self._marks.low, min(2 * free, 1.0)), remove, needed)

    def close(self) -> None:
        self._reserve.release()

    async def _free(
        self, root: Path, share: float, remove: Remove, needed: Callable[[], Collection[str]]
    ) -> list[ImageInfo]:
        """Evict images until ``share`` of the disk is free or no candidate is left."""

        async def enough() -> bool:
            await self._images.prune_cache()
            return 1 - read_disk(root).fullness >= share

        before = read_disk(root).fullness
        if 1 - before >= share:
            return []
        if self._release is not None:
            await self._release()
        holdings = await self.holdings()
        needed_names = needed()
        candidates = [image for image in self.free_to_go(holdings) if image.name not in needed_names]
        gone = await self.remove_all(departures(holdings, candidates), holdings, remove, enough)
        left = read_disk(root).fullness
        log.info(
            "Docker's disk was %.0f%% full; evicted %d images, now %.0f%% full", 100 * before, len(gone), 100 * left
        )
        return gone

    async def remove_all(
        self,
        order: Sequence[ImageInfo],
        holdings: Holdings,
        remove: Remove,
        enough: Callable[[], Awaitable[bool]] | None = None,
    ) -> list[ImageInfo]:
        """Remove images in this order until ``enough``; return the removed ones.

        An image that stays keeps its bases.
        """
        bases_of = bases(holdings.images)
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
                kept |= bases_of[image.name]
        return gone


class DiskReserve:
    """Reserved space on one disk, held in an unlinked file, so that it is freed whenever its process ends."""

    def __init__(self) -> None:
        self._file: int | None = None

    def hold(self, root: Path) -> None:
        """Reserve space on the disk of ``root``, and extend the blocks of the builder's databases.

        Reserves nothing if the disk is not writable or if too little would be left for others who free space on it.
        """
        try:
            usage = shutil.disk_usage(root)
            size = min(RESERVE_BYTES, usage.total // RESERVE_SHARE)
            if usage.free < 2 * size:
                return
            for database in root.glob(DATABASES):
                with suppress(OSError):  # not supported by the file system, or the database was removed
                    _allocate(database, GROWTH_BYTES)
            if self._file is None:
                self._file = os.open(root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                os.posix_fallocate(self._file, 0, size)
        except OSError as error:
            log.debug("no space is reserved on the disk of %s: %s", root, error)
            self.release()

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @contextmanager
    def released(self, root: Path) -> Iterator[None]:
        """Release the reserve inside the context and take it again at the end."""
        self.release()
        try:
            yield
        finally:
            self.hold(root)


def _allocate(path: Path, extra_bytes: int) -> None:
    """Allocate blocks for all of a file, which may be sparse, and for ``further`` bytes after its end.

    Content and size stay the same. Raises OSError.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size + extra_bytes
        if _libc.fallocate(fd, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(fd)


def read_disk(path: Path) -> DiskUsage:
    usage = shutil.disk_usage(path)
    return DiskUsage(usage.used, usage.free)

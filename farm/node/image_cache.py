"""The images of a node: each made once, however many episodes ask for it at once; room made where it is short."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from farm.tasks import TaskBundle, images_of
from sandboxes.errors import DiskFull, ImageError, SandboxError
from sandboxes.images.eviction import Remove
from sandboxes.images.store import ImageInfo

EnsureImage = Callable[[TaskBundle], Awaitable[object]]
"""Makes a task's image where it is missing. Raises ImageError, which is the task's fault, or RuntimeUnavailable."""

Images = frozenset[str]
"""All that one task needs: tasks of one image may have other verifiers, and one's fault is not the other's."""

BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 60.0
TIDY_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class ImageEvictor(Protocol):
    """Who makes room on the disk, as ``sandboxes.images.eviction.Retention`` does."""

    def touch(self, image: str) -> None: ...

    async def remove(self, image: str) -> bool: ...

    async def evict(self, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]: ...

    async def free_share(self) -> float: ...

    async def make_room(
        self, free: float, remove: Remove, needed: Callable[[], Collection[str]]
    ) -> list[ImageInfo]: ...


@dataclass(slots=True)
class _ImageBuild:
    task: asyncio.Task[None]
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    """``retry_at`` by the clock of ``time.monotonic``."""

    error: SandboxError
    times: int
    retry_at: float

    @property
    def left_s(self) -> float:
        return self.retry_at - time.monotonic()


class ImageCache:
    """``keeper`` None: whatever is here stays.

    After a failure images are not tried again before some time has passed, twice as long each time. Until then the
    fault of a task is told again at once; whoever comes after a fault of the machine waits for the next try.
    """

    def __init__(
        self,
        ensure: EnsureImage,
        here: Iterable[str] = (),
        *,
        keeper: ImageEvictor | None = None,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self._ensure = ensure
        self._here = set(here)
        self._keeper = keeper
        self._backoff_s = backoff_s
        self._held: Counter[str] = Counter()
        self._making: dict[Images, _ImageBuild] = {}
        self._settling: defaultdict[str, set[asyncio.Task[Any]]] = defaultdict(set)
        """What has to end before an image is made: its removal, or an earlier making that was given up."""
        self._failures: dict[Images, _Failure] = {}
        self._tidying = asyncio.Lock()
        self._tidied = 0

    @property
    def images(self) -> frozenset[str]:
        """What is here or on its way, so that a group's episodes come to where their image is being made."""
        return frozenset(self._here.union(*(self._making.keys() - self._failures.keys())))

    @contextmanager
    def pin(self, image: str) -> Iterator[None]:
        """Nobody makes room by removing the image as long as this lasts, be it here or not."""
        self._held[image] += 1
        try:
            yield
        finally:
            self._held[image] -= 1
            if not self._held[image]:
                del self._held[image]

    async def ensure(self, bundle: TaskBundle) -> None:
        """Return when the images of the task are here. Raises what kept one from being made.

        All who wait for the same images wait for one making of them; when the last of them is cancelled, so is that.
        """
        needed = images_of(bundle.task)
        if self._keeper:
            for name in needed:
                self._keeper.touch(name)
        if needed <= self._here:
            return
        making = self._making.get(needed)
        if making is None:
            self._refuse_early(needed)
            before = [other.task for images, other in self._making.items() if images & needed]
            making = self._making[needed] = _ImageBuild(asyncio.create_task(self._make(bundle, needed, before)))
        making.waiting += 1
        try:
            await asyncio.shield(making.task)
        finally:
            making.waiting -= 1
            if not making.waiting and not making.task.done():
                self._give_up(needed, making.task)

    def invalidate(self, bundle: TaskBundle) -> None:
        """One of its images has turned out to be gone; the next episode that needs it makes it again."""
        self._here -= images_of(bundle.task)

    async def run_eviction_loop(self) -> None:
        """Make room whenever the disk is nearly full, for as long as this runs."""
        while self._keeper:
            try:
                async with self._tidying:
                    await self._keeper.evict(self._remove, self._held.keys)
            except Exception:  # what cannot be removed now is tried again by the next round
                _log.warning("no room was made on Docker's disk", exc_info=True)
            await asyncio.sleep(TIDY_EVERY_S)

    async def close(self) -> None:
        for images, making in list(self._making.items()):
            self._give_up(images, making.task)
        await asyncio.gather(*(task for tasks in self._settling.values() for task in tasks), return_exceptions=True)

    async def _make(self, bundle: TaskBundle, needed: Images, before: Sequence[asyncio.Task[None]]) -> None:
        """Not beside those ``before``, which make one of the same images: one of the two will find it made."""
        try:
            settling = {task for image in needed for task in self._settling.get(image, ())}
            if in_the_way := settling.union(before):
                await asyncio.wait(in_the_way)
            if failure := self._failures.get(needed):
                await asyncio.sleep(failure.left_s)
            await self._ensure_with_room(bundle)
            self._here |= needed
            self._failures.pop(needed, None)
        except SandboxError as error:
            self._failed(needed, error)
            raise
        finally:
            if needed in self._making and self._making[needed].task is asyncio.current_task():
                del self._making[needed]

    async def _ensure_with_room(self, bundle: TaskBundle) -> None:
        if self._keeper is None:
            await self._ensure(bundle)
            return
        tidied, free = self._tidied, await self._keeper.free_share()
        try:
            await self._ensure(bundle)
        except DiskFull as error:
            _log.warning("%s", error)
            async with self._tidying:
                if self._tidied == tidied:  # else another who met the full disk has made room since
                    await self._keeper.make_room(free, self._remove, self._held.keys)
                    self._tidied += 1
            await self._ensure(bundle)

    def _failed(self, needed: Images, error: SandboxError) -> None:
        earlier = self._failures.get(needed)
        times = earlier.times + 1 if earlier else 1
        wait_s = min(self._backoff_s * 2 ** (times - 1), LONGEST_BACKOFF_S)
        self._failures[needed] = _Failure(error, times, time.monotonic() + wait_s)
        _log.warning("%s; %d in a row, the next try not before %.0f s from now", error, times, wait_s)

    def _refuse_early(self, needed: Images) -> None:
        failure = self._failures.get(needed)
        if failure and isinstance(failure.error, ImageError) and failure.left_s > 0:
            raise ImageError(f"{failure.error} (not tried again for {failure.left_s:.0f} s)")

    def _give_up(self, needed: Images, task: asyncio.Task[None]) -> None:
        del self._making[needed]
        task.cancel()
        for image in needed:
            self._settle(image, task)

    async def _remove(self, image: str) -> bool:
        """Unless somebody needs it. Whoever comes while it goes waits, and then makes it again."""
        assert self._keeper is not None
        if image in self._held or image in self._settling or any(image in needed for needed in self._making):
            return False
        was_here = image in self._here
        self._here.discard(image)
        removal = asyncio.create_task(self._keeper.remove(image))
        self._settle(image, removal)
        gone = await asyncio.shield(removal)
        if was_here and not gone:
            self._here.add(image)
        return gone

    def _settle(self, image: str, task: asyncio.Task[Any]) -> None:
        def settled(task: asyncio.Task[Any]) -> None:
            self._settling[image].discard(task)
            if not self._settling[image]:
                del self._settling[image]
            if not task.cancelled():
                task.exception()  # nobody waits for a making that was given up

        self._settling[image].add(task)
        task.add_done_callback(settled)

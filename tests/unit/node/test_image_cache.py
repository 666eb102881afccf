"""The images of a node: made once for all who ask, not tried again at once, removed where nobody needs them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace

import pytest

from farm.core.task import Separate
from farm.node.image_cache import ImageCache
from farm.tasks import TaskBundle
from sandboxes.errors import DiskFull, ImageError, RuntimeUnavailable
from sandboxes.images.eviction import Remove
from sandboxes.images.store import ImageInfo
from tests.support.farm.grading_values import make_bundle

FOREVER_S = 3600.0
AT_ONCE_S = 0.001


def bundle(image: str = "x") -> TaskBundle:
    made = make_bundle()
    return replace(made, task=replace(made.task, image=image))


class Workshop:
    """Builds images once ``may_end`` is set; the first builds raise ``failing`` in turn."""

    def __init__(self, *failing: Exception) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.may_end = asyncio.Event()
        self._failing = list(failing)

    async def __call__(self, bundle: TaskBundle) -> None:
        self.begun.append(bundle.task.image)
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(bundle.task.image)
            raise
        if self._failing:
            raise self._failing.pop(0)


async def settled() -> None:
    """Let all ready tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_concurrent_callers_share_one_build() -> None:
    workshop = Workshop()
    shelf = ImageCache(workshop, ["y"])
    takers = [asyncio.create_task(shelf.ensure(bundle())) for _ in range(5)]
    await settled()
    assert shelf.images == {"x", "y"}
    workshop.may_end.set()
    await asyncio.gather(*takers, shelf.ensure(bundle()), shelf.ensure(bundle("y")))
    assert workshop.begun == ["x"]


def with_verifier(image: str) -> TaskBundle:
    """Return a task of image ``x`` with a verifier of another image."""
    separate = Separate(
        image, workdir=None, artifacts=(), collect=(), brings_tests=True, cpus=1, memory_mib=64, storage_mib=64, env=()
    )
    made = bundle()
    return replace(made, task=replace(made.task, verifier=replace(made.task.verifier, separate=separate)))


async def test_tasks_with_different_verifier_images_build_separately() -> None:
    workshop = Workshop(ImageError("no such step"))
    shelf = ImageCache(workshop, backoff_s=FOREVER_S)
    bad, good = (asyncio.create_task(shelf.ensure(with_verifier(image))) for image in ("bad", "good"))
    await settled()
    assert workshop.begun == ["x"]  # not both at once
    workshop.may_end.set()
    with pytest.raises(ImageError, match="no such step"):
        await bad
    await good
    assert workshop.begun == ["x", "x"]
    assert shelf.images == {"x", "good"}
    with pytest.raises(ImageError, match="not tried again"):
        await shelf.ensure(with_verifier("bad"))
    shelf.invalidate(with_verifier("good"))
    await shelf.ensure(bundle())
    assert shelf.images == {"x"}


async def test_cancelled_caller_keeps_build_for_others() -> None:
    workshop = Workshop()
    shelf = ImageCache(workshop)
    impatient, patient = (asyncio.create_task(shelf.ensure(bundle())) for _ in range(2))
    await settled()
    impatient.cancel()
    await settled()
    assert workshop.cancelled == []
    workshop.may_end.set()
    await patient
    assert impatient.cancelled()
    assert workshop.begun == ["x"]


async def test_last_cancelled_caller_ends_build_and_next_rebuilds() -> None:
    workshop = Workshop()
    shelf = ImageCache(workshop)
    takers = [asyncio.create_task(shelf.ensure(bundle())) for _ in range(2)]
    await settled()
    for taker in takers:
        taker.cancel()
    late = asyncio.create_task(shelf.ensure(bundle()))
    await settled()
    assert workshop.cancelled == ["x"]
    workshop.may_end.set()
    await late
    assert workshop.begun == ["x", "x"]


async def test_task_fault_fails_all_callers_until_backoff_ends() -> None:
    workshop = Workshop(ImageError("no such step"))
    workshop.may_end.set()
    shelf = ImageCache(workshop, backoff_s=FOREVER_S)
    told = await asyncio.gather(*(shelf.ensure(bundle()) for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in told] == ["no such step"] * 3
    with pytest.raises(ImageError, match=r"no such step \(not tried again for"):
        await shelf.ensure(bundle())
    assert workshop.begun == ["x"]
    assert shelf.images == frozenset()


async def test_host_fault_fails_caller_and_next_retries() -> None:
    workshop = Workshop(RuntimeUnavailable("no way there"), RuntimeUnavailable("no way there"))
    workshop.may_end.set()
    shelf = ImageCache(workshop, backoff_s=AT_ONCE_S)
    for _ in range(2):
        with pytest.raises(RuntimeUnavailable, match="no way there"):
            await shelf.ensure(bundle())
    await shelf.ensure(bundle())
    assert workshop.begun == ["x"] * 3
    assert shelf.images == {"x"}


async def test_image_in_backoff_is_not_advertised() -> None:
    workshop = Workshop(RuntimeUnavailable("no way there"))
    workshop.may_end.set()
    shelf = ImageCache(workshop, backoff_s=FOREVER_S)
    with pytest.raises(RuntimeUnavailable):
        await shelf.ensure(bundle())
    waiting = asyncio.create_task(shelf.ensure(bundle()))
    await settled()
    assert not waiting.done()
    assert workshop.begun == ["x"]
    assert shelf.images == frozenset()
    await shelf.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


class PretendedKeeper:
    """Removes images once ``may_remove`` is set; an eviction asks to remove ``wanted``."""

    def __init__(self, *wanted: str) -> None:
        self.may_remove = asyncio.Event()
        self.stays: set[str] = set()
        self.removed: list[str] = []
        self.needed: list[set[str]] = []
        self._wanted = wanted

    def touch(self, image: str) -> None:
        """Record nothing: no test reads the last use."""

    async def remove(self, image: str) -> bool:
        await self.may_remove.wait()
        if image in self.stays:
            return False
        self.removed.append(image)
        return True

    async def evict(self, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        self.needed.append(set(needed()))
        for image in self._wanted:
            await remove(image)
        return []

    async def free_share(self) -> float:
        return 0.0

    async def make_room(self, free: float, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        return await self.evict(remove, needed)


def shelf_with(workshop: Callable[[TaskBundle], Awaitable[object]], keeper: PretendedKeeper) -> ImageCache:
    return ImageCache(workshop, ["old", "held"], evictor=keeper, backoff_s=AT_ONCE_S)


async def test_pinned_image_is_not_evicted() -> None:
    keeper = PretendedKeeper("old", "held", "made")
    keeper.may_remove.set()
    workshop = Workshop()
    shelf = shelf_with(workshop, keeper)
    making = asyncio.create_task(shelf.ensure(bundle("made")))
    await settled()
    with shelf.pin("held"), shelf.pin("held"):
        tidying = asyncio.create_task(shelf.run_eviction_loop())
        await settled()
        tidying.cancel()
        assert keeper.needed == [{"held"}]
    assert keeper.removed == ["old"]
    assert shelf.images == {"held", "made"}
    workshop.may_end.set()
    await making


async def test_image_needed_during_eviction_is_rebuilt() -> None:
    keeper = PretendedKeeper("old")
    workshop = Workshop()
    workshop.may_end.set()
    shelf = shelf_with(workshop, keeper)
    tidying = asyncio.create_task(shelf.run_eviction_loop())
    await settled()
    with shelf.pin("old"):
        taking = asyncio.create_task(shelf.ensure(bundle("old")))
        await settled()
        assert workshop.begun == []
        keeper.may_remove.set()
        await taking
    tidying.cancel()
    assert keeper.removed == ["old"]
    assert workshop.begun == ["old"]


async def test_image_that_cannot_be_removed_stays_listed() -> None:
    keeper = PretendedKeeper("old")
    keeper.stays = {"old"}
    keeper.may_remove.set()
    shelf = shelf_with(Workshop(), keeper)
    tidying = asyncio.create_task(shelf.run_eviction_loop())
    await settled()
    tidying.cancel()
    assert shelf.images == {"old", "held"}


async def test_full_disk_evicts_once_and_retries_all_builds() -> None:
    keeper = PretendedKeeper("old")
    keeper.may_remove.set()
    workshop = Workshop(DiskFull("no space"), DiskFull("no space"))
    shelf = shelf_with(workshop, keeper)
    takers = [asyncio.create_task(shelf.ensure(bundle(name))) for name in ("x", "y")]
    await settled()
    workshop.may_end.set()
    await asyncio.gather(*takers)
    assert sorted(workshop.begun) == ["x", "x", "y", "y"]
    assert keeper.removed == ["old"]
    assert len(keeper.needed) == 1


async def test_disk_still_full_is_host_fault() -> None:
    keeper = PretendedKeeper()
    workshop = Workshop(DiskFull("no space"), DiskFull("no space"))
    workshop.may_end.set()
    shelf = shelf_with(workshop, keeper)
    with pytest.raises(RuntimeUnavailable, match="no space"):
        await shelf.ensure(bundle())
    assert len(workshop.begun) == 2

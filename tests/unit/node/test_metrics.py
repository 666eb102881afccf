"""The series of a node agent."""

import asyncio
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from farm.node.image_cache import ImageCache
from farm.node.metrics import NodeMetrics
from farm.tasks import TaskBundle
from sandboxes import BootError, FakeRuntime, SandboxSpec, WarmPool
from sandboxes.errors import DiskFull, ImageError, RuntimeUnavailable
from sandboxes.images.eviction import Remove
from sandboxes.images.store import ImageInfo
from tests.support.farm.grading_values import make_bundle

SPEC = SandboxSpec("x")


class LeavingRuntime(FakeRuntime):
    """A runtime whose reaper finds two sandboxes of a dead owner each time."""

    async def reap(self) -> int:
        return 2


def task_of(image: str) -> TaskBundle:
    made = make_bundle()
    return replace(made, task=replace(made.task, image=image))


async def nothing(bundle: TaskBundle) -> None:
    """Every image can be made."""


async def values(metrics: NodeMetrics) -> dict[str, float]:
    lines = (await metrics.expose()).decode().splitlines()
    return {name: float(number) for name, _, number in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def test_starts_failures_and_leaks_are_counted() -> None:
    metrics = NodeMetrics()
    runtime = metrics.measured(LeavingRuntime({"x": {}}, boot_errors=[BootError("no"), None, None]))
    with pytest.raises(BootError):
        await runtime.create(SPEC)
    kept = await runtime.create(SPEC)
    async with runtime.scope(SPEC):
        assert (await values(metrics))["farm_sandboxes_living"] == 2.0
    assert await runtime.reap() == 2
    found = await values(metrics)
    assert found["farm_sandboxes_living"] == 1.0
    assert found["farm_sandbox_start_seconds_count"] == 2.0
    assert found['farm_sandbox_start_failures_total{error="BootError"}'] == 1.0
    assert found["farm_sandboxes_reaped_total"] == 2.0
    await kept.remove()


async def test_pool_and_machine_are_shown(tmp_path: Path) -> None:
    metrics = NodeMetrics()
    pool = WarmPool(metrics.measured(FakeRuntime({"x": {}})), shortage=lambda: "")
    metrics.follow(ImageCache(nothing), pool, tmp_path, tmp_path)
    with pool.reserve(SPEC, 2):
        async with asyncio.timeout(30):
            while pool.fill != (2, 2):  # noqa: ASYNC110 - the pool has no event for it
                await asyncio.sleep(0)
        found = await values(metrics)
        assert [found[f"farm_sandbox_pool_{name}"] for name in ("ready", "wanted")] == [2.0, 2.0]
        assert found["farm_sandbox_start_seconds_count"] == 2.0
        await pool.create(SPEC)
        assert (await values(metrics))["farm_sandbox_pool_taken_total"] == 1.0
    assert found["farm_machine_memory_bytes"] >= found["farm_machine_memory_available_bytes"] > 0
    assert found['farm_machine_disk_free_bytes{disk="images"}'] > 0
    assert 0 <= found['farm_machine_pressure_ratio{resource="io",tasks="full"}'] <= 1
    await pool.close()


async def test_requests_for_images_are_counted(tmp_path: Path) -> None:
    async def make(bundle: TaskBundle) -> None:
        if bundle.task.image == "broken":
            raise ImageError("it cannot be built")

    metrics, cache = NodeMetrics(), ImageCache(make, ["there"])
    metrics.follow(cache, None, tmp_path, None)
    for image in ("there", "new", "new"):
        await cache.ensure(task_of(image))
    with pytest.raises(ImageError):
        await cache.ensure(task_of("broken"))
    found = await values(metrics)
    outcomes = [found[f'farm_image_requests_total{{outcome="{name}"}}'] for name in ("hit", "made", "failed")]
    assert outcomes == [2.0, 1.0, 1.0]
    assert found["farm_image_cache_images"] == 2.0


class FullDisk:
    """An evictor of a disk that is always full: it removes one image each time."""

    def touch(self, image: str) -> None:
        """Record nothing: no test reads the last use."""

    async def remove(self, image: str) -> bool:
        return True

    async def free_share(self) -> float:
        return 0.0

    async def evict(self, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        assert await remove("old")
        return [ImageInfo("old", "sha256:1", {}, "/", 7_000, {})]

    async def make_room(self, free: float, remove: Remove, needed: Callable[[], Collection[str]]) -> list[ImageInfo]:
        return await self.evict(remove, needed)


async def test_evicted_images_are_counted_with_their_bytes(tmp_path: Path) -> None:
    full = [DiskFull("no space")]

    async def make(bundle: TaskBundle) -> None:
        if full:
            raise full.pop()

    metrics, cache = NodeMetrics(), ImageCache(make, ["old"], evictor=FullDisk())
    metrics.follow(cache, None, tmp_path, None)
    await cache.ensure(task_of("new"))
    found = await values(metrics)
    assert [found[f"farm_image_{name}_total"] for name in ("evictions", "evicted_bytes")] == [1.0, 7_000.0]
    evicting = asyncio.create_task(cache.run_eviction_loop())
    async with asyncio.timeout(30):
        while cache.counts.evictions < 2:  # noqa: ASYNC110 - the loop has no event for it
            await asyncio.sleep(0)
    evicting.cancel()


async def test_series_are_shown_while_docker_gives_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def away() -> int:
        raise RuntimeUnavailable("Docker does not answer; start it")

    metrics = NodeMetrics()
    metrics.image_bytes = away
    assert (await values(metrics))["farm_sandboxes_living"] == 0.0
    assert re.search("earlier figures .*start it", caplog.text)

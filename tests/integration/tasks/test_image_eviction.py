"""Room made on a real daemon's disk, a small one: what goes, what stays, and what is full."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError

from farm.node.image_cache import ImageCache
from farm.tasks import TASK_PREFIX, TaskBundle, ensure_image
from farm.tasks.bundle import BundleFile
from sandboxes import RuntimeUnavailable, SandboxSpec
from sandboxes.errors import DiskFull
from sandboxes.images.build import BuildSettings
from sandboxes.images.eviction import GROWTH_BYTES, RESERVE_SHARE, ImageRetention, Watermarks, read_disk
from sandboxes.images.last_used import ImageUses
from sandboxes.images.store import ImageStore
from sandboxes.runtimes.oci.runtime import OciRuntime
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.docker_daemon import docker_daemon
from tests.support.farm.grading_values import make_bundle
from tests.support.images import Layer
from tests.support.registry import Registry, running_registry
from tests.support.services import missing

pytestmark = pytest.mark.docker

MIB = 1024 * 1024
DISK_MIB = 320
NOW = 1_700_000_000.0


@dataclass(frozen=True)
class SmallDocker:
    host: str
    root: Path
    client: docker.DockerClient


@pytest.fixture(scope="module")
def daemon() -> Iterator[SmallDocker]:
    if os.geteuid() != 0:
        missing("root", "a disk of its own needs it")
    with docker_daemon({}, disk_mib=DISK_MIB) as host:
        client = docker.DockerClient(base_url=host)
        yield SmallDocker(host, Path(client.info()["DockerRootDir"]), client)
        client.close()


@pytest.fixture
def uses(tmp_path: Path) -> ImageUses:
    return ImageUses.of(tmp_path)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as registry:
        yield registry


@pytest.fixture
async def images(daemon: SmallDocker, uses: ImageUses, registry: Registry) -> AsyncIterator[ImageStore]:
    """The daemon is empty again afterwards."""
    store = ImageStore(daemon.host, BuildSettings(registries=(registry.address,)), uses=uses)
    yield store
    for container in daemon.client.containers.list(all=True):
        container.remove(force=True)
    while left := [image.name for image in await store.list()]:
        for name in left:
            await store.remove(name)
    await store.prune_cache()
    await store.close()
    assert read_disk(daemon.root).used_bytes < 10 * MIB


Keeping = Callable[..., ImageRetention]


@pytest.fixture
def keeping(images: ImageStore, uses: ImageUses) -> Iterator[Keeping]:
    """Retention of these images that holds nothing of the disk back any more when the test is over."""
    with ExitStack() as stack:

        def keep(**settings: Any) -> ImageRetention:
            retention = ImageRetention(images, uses, prefix=TASK_PREFIX, **settings)
            stack.callback(retention.close)
            return retention

        yield keep


@pytest.fixture
async def keeper(keeping: Keeping) -> ImageRetention:
    """It has looked at the disk once, as a farm's does when it starts."""
    retention = keeping()
    assert await retention.evict(retention.remove, set) == []
    return retention


def task(name: str, mib: int, base: str = "scratch") -> TaskBundle:
    """A task whose image has a layer of its own of so many MiB; what it is built from is small."""
    packed = gzip.compress(Layer().file(name, bytes(mib * MIB)).packed(), 1)
    made = make_bundle()
    context = {"Dockerfile": f"FROM {base}\nADD content.tar.gz /\n".encode(), "content.tar.gz": packed}
    files = {path: BundleFile(content) for path, content in context.items()}
    return replace(made, task=replace(made.task, image=f"{TASK_PREFIX}{name}:1"), environment=files)


async def made(images: ImageStore, uses: ImageUses, *bundles: TaskBundle) -> None:
    """Images, each used later than the one before it, and all used later than they were built."""
    for second, bundle in enumerate(bundles):
        info = await ensure_image(bundle, images)
        uses.note(info.name, info.tagged_at + 1000 + second)


async def names(images: ImageStore) -> list[str]:
    return [image.name.removeprefix(TASK_PREFIX).removesuffix(":1") for image in await images.list()]


async def test_eviction_starts_above_high_and_ends_below_low(
    daemon: SmallDocker, images: ImageStore, uses: ImageUses, keeping: Keeping
) -> None:
    await made(images, uses, *(task(name, 40) for name in "dcba"))
    retention = keeping(marks=Watermarks(high=0.5, low=0.3))
    gone = await retention.evict(retention.remove, set)
    assert [image.name for image in gone] == ["farm-task-d:1", "farm-task-c:1"]
    assert await names(images) == ["a", "b"]
    assert read_disk(daemon.root).fullness < 0.3
    assert uses.all().keys() == {"farm-task-a:1", "farm-task-b:1"}
    assert await retention.evict(retention.remove, set) == []


async def test_eviction_keeps_used_needed_base_and_foreign_images(
    daemon: SmallDocker, images: ImageStore, uses: ImageUses, keeping: Keeping
) -> None:
    base, upper = task("base", 30), task("upper", 1, base=f"{TASK_PREFIX}base:1")
    await made(images, uses, base, task("occupied", 30), task("needed", 30), task("idle", 30), upper)
    daemon.client.containers.create(f"{TASK_PREFIX}occupied:1", ["/x"])
    daemon.client.images.get(f"{TASK_PREFIX}idle:1").tag("strangers", "1")
    retention = keeping(marks=Watermarks(high=0.1, low=0.0))
    needed = {f"{TASK_PREFIX}needed:1", f"{TASK_PREFIX}upper:1"}
    await retention.evict(retention.remove, lambda: needed)
    assert await names(images) == ["base", "needed", "occupied", "upper", "strangers"]
    await retention.evict(retention.remove, set)
    assert await names(images) == ["occupied", "strangers"]


async def test_pulled_images_are_evicted(
    images: ImageStore, uses: ImageUses, keeping: Keeping, daemon: SmallDocker
) -> None:
    with running_registry() as registry:
        registry.put("a", os.urandom(30 * MIB))
        await images.pull(registry.name("a"))
        retention = keeping(marks=Watermarks(high=0.05, low=0.0))
        assert [image.name for image in await retention.evict(retention.remove, set)] == [registry.name("a")]
    assert read_disk(daemon.root).used_bytes < 10 * MIB


async def test_eviction_releases_runtime_images_without_sandboxes(
    daemon: SmallDocker, images: ImageStore, uses: ImageUses, keeping: Keeping, tmp_path: Path, toolbox: Toolbox
) -> None:
    await made(images, uses, task("idle", 30), task("lived-in", 30))
    try:
        runtime = await OciRuntime.open(state_dir=tmp_path, docker_host=daemon.host, toolbox=toolbox)
    except RuntimeUnavailable as error:
        missing("the oci runtime", str(error))
        raise
    marks = Watermarks(high=0.1, low=0.0)
    retention = keeping(marks=marks, release=runtime.release_images)
    try:
        async with runtime.scope(SandboxSpec(f"{TASK_PREFIX}lived-in:1")) as sandbox:
            async with runtime.scope(SandboxSpec(f"{TASK_PREFIX}idle:1")):
                assert await retention.evict(retention.remove, set) == []
            assert [image.name for image in await retention.evict(retention.remove, set)] == [f"{TASK_PREFIX}idle:1"]
            assert (await sandbox.stat("/lived-in")).size == 30 * MIB
    finally:
        await runtime.close()


async def test_build_on_full_disk_evicts_images(images: ImageStore, uses: ImageUses, keeper: ImageRetention) -> None:
    await made(images, uses, *(task(name, 60) for name in "cba"))
    shelf = ImageCache(
        partial(ensure_image, images=images), [f"{TASK_PREFIX}{name}:1" for name in "abc"], evictor=keeper
    )
    with shelf.pin(f"{TASK_PREFIX}c:1"):
        await shelf.ensure(task("new", 160))
    assert await names(images) == ["c", "new"]
    assert shelf.images == {f"{TASK_PREFIX}c:1", f"{TASK_PREFIX}new:1"}


def pulled_task(name: str) -> TaskBundle:
    bundle = make_bundle()
    return replace(bundle, task=replace(bundle.task, image=name))


def fill_the_disk(path: Path) -> None:
    with path.open("wb") as file:
        while left := read_disk(path).free_bytes:
            with suppress(OSError):  # the daemon has taken some meanwhile
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), left)


async def test_completely_full_disk_is_cleared_with_reserve(
    daemon: SmallDocker, images: ImageStore, uses: ImageUses, keeper: ImageRetention
) -> None:
    await made(images, uses, *(task(name, 30) for name in "ba"))
    filler, reserve = daemon.root / "filler", DISK_MIB * MIB // RESERVE_SHARE
    fill_the_disk(filler)
    try:
        with pytest.raises(APIError, match="no space left on device"):  # nor can an image's name be taken away
            daemon.client.images.get(f"{TASK_PREFIX}b:1").tag(f"{TASK_PREFIX}c", "1")
        await keeper.make_room(0.0, keeper.remove, set)
        assert await names(images) == []
        assert read_disk(daemon.root).free_bytes > 60 * MIB
        fill_the_disk(filler)
        assert await keeper.make_room(0.0, keeper.remove, set) == []
        assert read_disk(daemon.root).free_bytes > reserve // 2, "others who clear the disk have it"
    finally:
        filler.unlink()
    await keeper.evict(keeper.remove, set)
    free = read_disk(daemon.root).free_bytes
    keeper.close()
    assert read_disk(daemon.root).free_bytes - free > reserve // 2


async def test_builder_databases_have_preallocated_blocks(
    daemon: SmallDocker, images: ImageStore, uses: ImageUses, keeper: ImageRetention
) -> None:
    """If the builder cannot record that a build failed, it keeps the files of that build until the daemon ends."""
    databases = list((daemon.root / "buildkit").glob("*.db"))
    assert databases
    await made(images, uses, task("a", 1))  # they grow
    lengths = [database.stat().st_size for database in databases]
    await keeper.evict(keeper.remove, set)
    for database, length in zip(databases, lengths, strict=True):
        found = database.stat()
        assert found.st_size == length
        assert found.st_blocks * 512 >= length + GROWTH_BYTES
    await made(images, uses, task("b", 1))  # they are whole
    assert await names(images) == ["a", "b"]


async def test_pull_on_full_disk_evicts_images(
    images: ImageStore, uses: ImageUses, keeper: ImageRetention, registry: Registry
) -> None:
    await made(images, uses, *(task(name, 60) for name in "cba"))
    shelf = ImageCache(partial(ensure_image, images=images), evictor=keeper)
    registry.put("new", bytes(100 * MIB))
    await shelf.ensure(pulled_task(registry.name("new")))
    assert await images.inspect(registry.name("new"))
    assert "c" not in await names(images)


async def test_make_room_frees_more_than_was_free(images: ImageStore, uses: ImageUses, keeper: ImageRetention) -> None:
    """Images are evicted even if the failed build or pull has already released its own space."""
    await made(images, uses, *(task(name, 60) for name in "cba"))
    free = await keeper.free_share()
    assert free > 1 - Watermarks().low
    await keeper.make_room(free, keeper.remove, set)
    assert "c" not in await names(images)
    assert await keeper.free_share() > 1.5 * free


async def test_disk_without_evictable_images_is_full(
    images: ImageStore, keeper: ImageRetention, registry: Registry
) -> None:
    shelf = ImageCache(partial(ensure_image, images=images), evictor=keeper)
    registry.put("huge", bytes(DISK_MIB * MIB))
    with pytest.raises(DiskFull, match=r"no space left on device.*farm images gc"):
        await shelf.ensure(pulled_task(registry.name("huge")))


def farm(daemon: SmallDocker, state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {"FARM_STATE_DIR": str(state_dir), "FARM_DOCKER_HOST": daemon.host}
    command = [str(Path(sys.executable).with_name("farm")), "images", *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, cwd=state_dir, capture_output=True, text=True)


async def test_images_gc_selects_by_count_and_age(
    daemon: SmallDocker, images: ImageStore, uses: ImageUses, tmp_path: Path
) -> None:
    await made(images, uses, *(task(name, 1) for name in "cba"))
    with running_registry() as registry:
        registry.put("old")
        old = registry.name("old")
        await images.pull(old)
        uses.note(old, 0.0)

    def told(*arguments: str) -> tuple[int, list[str]]:
        done = farm(daemon, tmp_path, "gc", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        return report["cache_freed_bytes"], [row["name"].removeprefix(TASK_PREFIX) for row in report["removed"]]

    for refused in ([], ["--dry-run"], ["--all", "--keep", "1"]):
        done = farm(daemon, tmp_path, "gc", *refused)
        assert done.returncode == 2
        assert "task sets to keep, --keep N, --older-than AGE, or --all" in done.stderr
    assert told("--all", "--dry-run") == (0, [old, "c:1", "b:1", "a:1"])
    assert told("--older-than", "1d")[1] == [old]
    freed, names_gone = told("--keep", "1")
    assert names_gone == ["c:1", "b:1"]
    assert freed >= 2 * MIB
    listed = json.loads(farm(daemon, tmp_path, "list", "--json").stdout)
    assert [(row["name"], row["in_use"]) for row in listed] == [(f"{TASK_PREFIX}a:1", False)]


async def test_images_gc_spares_images_of_other_state_dirs(
    daemon: SmallDocker, images: ImageStore, tmp_path: Path
) -> None:
    other = ImageStore(daemon.host, uses=ImageUses.of(tmp_path / "other"))
    await ensure_image(task("mine", 1), images)
    await ensure_image(task("theirs", 2), other)
    await other.close()

    def proposed(*arguments: str) -> tuple[list[str], int, str]:
        done = farm(daemon, tmp_path, "gc", *arguments, "--dry-run", "--json")
        report = json.loads(done.stdout)
        rows = sorted(row["name"].removeprefix(TASK_PREFIX) for row in report["removed"])
        return rows, report["images_freed_bytes"] // MIB, farm(daemon, tmp_path, "gc", *arguments, "--dry-run").stderr

    rows, mib, said = proposed("--keep", "0")
    assert (rows, mib) == (["mine:1"], 1)
    assert "1 images would go, up to 1 MB" in said
    assert proposed("--all")[:2] == (["mine:1", "theirs:1"], 3)


async def test_images_pull_reports_each_failed_image(daemon: SmallDocker, images: ImageStore, tmp_path: Path) -> None:
    with running_registry() as registry:
        registry.put("a")
        done = farm(daemon, tmp_path, "pull", registry.name("a"), registry.name("nowhere"), "--json")
        assert done.returncode == 1
        assert [row["name"] for row in json.loads(done.stdout)] == [registry.name("a")]
        assert done.stderr.count("\n") == 1
        assert f"{registry.name('nowhere')} cannot be pulled: manifest unknown" in done.stderr

"""Images pulled for real, from a registry of the test's own on loopback."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import docker
import pytest

from farm.node.image_cache import ImageCache
from farm.tasks import BundleFile, TaskBundle, ensure_image
from sandboxes.errors import ImageError, RuntimeUnavailable
from sandboxes.images.build import BuildSettings
from sandboxes.images.digest_pins import ImageOrigins
from sandboxes.images.last_used import ImageUses
from sandboxes.images.store import ImageStore, PullProgress
from tests.support.farm.grading_values import make_bundle
from tests.support.registry import Registry, running_registry

pytestmark = pytest.mark.docker


@pytest.fixture
def registry(docker_client: docker.DockerClient) -> Iterator[Registry]:
    """Whatever was pulled from it is removed afterwards."""
    with running_registry() as registry:
        yield registry
    for image in docker_client.api.images():  # not one by one: other tests' images come and go
        for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())):
            if name.startswith(registry.address) and docker_client.images.list(name):
                docker_client.images.remove(name)


@pytest.fixture
async def store(tmp_path: Path, registry: Registry) -> AsyncIterator[ImageStore]:
    store = ImageStore(None, BuildSettings(registries=(registry.address,)), uses=ImageUses.of(tmp_path))
    yield store
    await store.close()


def task_of(image: str) -> TaskBundle:
    """A task whose image comes from a registry."""
    made = make_bundle()
    return replace(made, task=replace(made.task, image=image))


async def until_halfway(registry: Registry) -> None:
    assert await asyncio.to_thread(registry.halfway.wait, 60)


async def test_pull_reports_progress_and_marks_image_pulled(
    registry: Registry, store: ImageStore, tmp_path: Path
) -> None:
    registry.put("a", os.urandom(2_000_000))
    name, told = registry.name("a"), list[PullProgress]()
    info = await store.pull(name, told.append)
    assert info.labels == {"image": "a"}
    assert told[-1] == PullProgress(told[-1].total_bytes, told[-1].total_bytes, 1, 1)
    assert told[-1].total_bytes >= 2_000_000
    assert ImageUses.of(tmp_path).all()[name].pulled


async def test_image_present_before_pull_is_not_marked(
    registry: Registry, store: ImageStore, docker_client: docker.DockerClient, tmp_path: Path
) -> None:
    registry.put("a")
    docker_client.images.pull(registry.name("a").removesuffix(":1"), "1")
    await store.pull(registry.name("a"))
    assert ImageUses.of(tmp_path).all() == {}


async def test_image_is_pulled_listed_removed_by_digest(registry: Registry, store: ImageStore) -> None:
    content = os.urandom(16)  # the same image under a tag would go by that
    pinned = registry.name("a").removesuffix(":1") + "@" + registry.put("a", content)
    await store.pull(pinned)
    assert [image.name for image in await store.list(registry.address)] == [pinned]
    assert await store.remove(pinned)
    assert await store.list(registry.address) == ()


@pytest.fixture
def served(registry: Registry) -> str:
    """What the registry calls an image; no other test's, since the daemon knows its name without the registry's."""
    return f"org-{registry.address.rpartition(':')[2]}/task"


@pytest.fixture
def name(served: str) -> str:
    """What the farm calls that image."""
    return f"farm-test-{served}:1"


@pytest.fixture
async def mirrored(
    registry: Registry, name: str, tmp_path: Path, docker_client: docker.DockerClient
) -> AsyncIterator[ImageStore]:
    """The registry stands in for the default one."""
    store = ImageStore(origins=ImageOrigins.of(tmp_path, registry.address))
    yield store
    await store.close()
    for image in docker_client.images.list(name):
        docker_client.images.remove(str(image.id), force=True)


async def test_mirror_replaces_default_registry_without_extra_names(
    registry: Registry, mirrored: ImageStore, served: str, name: str
) -> None:
    registry.put(served)
    info = await mirrored.pull(name)
    assert info.labels == {"image": served}
    assert await mirrored.list(registry.address) == ()
    assert await mirrored.remove(name)
    assert await mirrored.inspect(info.digest) is None


async def test_image_name_is_pinned_to_first_digest(
    registry: Registry, mirrored: ImageStore, served: str, name: str
) -> None:
    registry.put(served, b"first")
    first = await mirrored.pull(name)
    await mirrored.remove(name)
    registry.put(served, b"second")
    assert (await mirrored.pull(name)).digest == first.digest
    second = await mirrored.pull(name, anew=True)
    assert second.digest != first.digest
    assert (await mirrored.pull(name)).digest == second.digest


async def test_base_image_is_pulled_from_mirror(
    registry: Registry, mirrored: ImageStore, served: str, name: str
) -> None:
    registry.put(served)
    made = task_of(f"farm-test-build:{registry.address.rpartition(':')[2]}")
    lines = f"ARG X\nFROM {name} AS one\nLABEL more=1\nFROM one\n"
    bundle = replace(made, environment={"Dockerfile": BundleFile(lines.encode())})
    info = await ensure_image(bundle, mirrored)
    assert info.labels == {"image": served, "more": "1"}
    assert await mirrored.remove(bundle.task.image)


@pytest.mark.parametrize(
    ("image", "fault", "said"),
    [
        ("nowhere", ImageError, "manifest unknown; check the name"),
        ("closed", ImageError, "denied; check the name"),
        ("sick", RuntimeUnavailable, "503"),
        ("busy", RuntimeUnavailable, "toomanyrequests"),
    ],
)
async def test_registry_refusal_and_outage_raise_different_errors(
    registry: Registry, store: ImageStore, image: str, fault: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(fault, match=said) as caught:
        await store.pull(registry.name(image))
    assert "\n" not in str(caught.value)
    assert ImageUses.of(tmp_path).all() == {}


async def test_invalid_image_name_is_task_error(store: ImageStore) -> None:
    with pytest.raises(ImageError, match="repository name must be lowercase; check the image's name"):
        await ensure_image(task_of("x/UPPER:1"), store)


async def test_image_of_unlisted_registry_is_never_requested(registry: Registry, tmp_path: Path) -> None:
    registry.put("a")
    name = registry.name("a")
    store = ImageStore(uses=ImageUses.of(tmp_path))
    for bundle in (
        task_of(name),
        replace(
            task_of(f"farm-test-build:{registry.address.rpartition(':')[2]}"),
            environment={"Dockerfile": BundleFile(f"FROM {name}\n".encode())},
        ),
    ):
        with pytest.raises(ImageError, match="name it in build_registries"):
            await ensure_image(bundle, store)
    assert registry.pulls_begun == {}
    await store.close()


async def test_unreachable_registry_is_infra_error(store: ImageStore) -> None:
    with pytest.raises(RuntimeUnavailable, match=r"127\.0\.0\.1:9/x:1 cannot be pulled just now"):
        await store.pull("127.0.0.1:9/x:1")


async def test_concurrent_pulls_are_limited(registry: Registry) -> None:
    names = [registry.name(image) for image in "abcd"]
    for image in "abcd":
        registry.put(image, image.encode() * 200_000)
    store = ImageStore(pulls=2)
    registry.go.clear()
    pulls = [asyncio.create_task(store.pull(name)) for name in names]
    while len(registry.downloading) < 2:  # noqa: ASYNC110 - the registry is threads
        await asyncio.sleep(0.01)
    for name in names * 5:  # time in which a third would begin
        assert await store.inspect(name) is None
    registry.go.set()
    await asyncio.gather(*pulls)
    await store.close()
    assert registry.most_at_once == 2


async def test_concurrent_episodes_pull_one_image_once(registry: Registry, store: ImageStore) -> None:
    registry.put("a", b"x" * 200_000)
    task = task_of(registry.name("a"))
    shelf = ImageCache(partial(ensure_image, images=store))
    registry.go.clear()
    takers = [asyncio.create_task(shelf.ensure(task)) for _ in range(3)]
    await until_halfway(registry)
    takers[0].cancel()
    registry.go.set()
    await asyncio.gather(*takers[1:])
    assert registry.pulls_begun == {"farm-test-a": 1}
    assert await store.inspect(registry.name("a"))


async def test_abandoned_pull_ends_and_frees_its_slot(registry: Registry) -> None:
    for image in "ab":
        registry.put(image, os.urandom(64) * 200_000)
    store = ImageStore(None, BuildSettings(registries=(registry.address,)), pulls=1)
    shelf = ImageCache(partial(ensure_image, images=store))
    registry.go.clear()
    taker = asyncio.create_task(shelf.ensure(task_of(registry.name("a"))))
    await until_halfway(registry)
    taker.cancel()
    other = asyncio.create_task(shelf.ensure(task_of(registry.name("b"))))
    await asyncio.wait({taker})
    while not registry.pulls_begun["farm-test-b"]:  # noqa: ASYNC110 - the registry is threads
        await asyncio.sleep(0.01)
    registry.go.set()
    await other
    assert await store.inspect(registry.name("a")) is None
    await store.close()

"""A name that is moved while a runtime runs means the new image to it from that moment on."""

from collections.abc import AsyncIterator, Iterator

import docker
import pytest

from sandboxes import ImageError
from sandboxes.docker_engine.api import Engine

pytestmark = pytest.mark.docker


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    await engine.connect()
    yield engine
    await engine.close()


@pytest.fixture
def moved(docker_client: docker.DockerClient, test_image: str) -> Iterator[str]:
    name = f"{test_image}-moved"
    yield name
    if docker_client.images.list(name):
        docker_client.images.remove(name)


async def test_moved_tag_resolves_to_new_image(
    engine: Engine, docker_client: docker.DockerClient, test_image: str, scratch_image: str, moved: str
) -> None:
    repository, _, tag = moved.partition(":")
    for name in (test_image, scratch_image) * 5:
        docker_client.images.get(name).tag(repository, tag)
        found = [(await engine.image(moved)).id for _ in range(3)]
        assert found == [docker_client.images.get(name).id] * 3
    docker_client.images.remove(moved)
    with pytest.raises(ImageError, match="not on this machine"):
        await engine.image(moved)

"""The daemon, the toolbox and a runtime, as the tests of sandboxes make them; and the image of a tiny task."""

import asyncio
import secrets
from collections.abc import Iterator

import docker
import pytest

from sandboxes.images import ImageStore
from tests.integration import tiny
from tests.services import missing


@pytest.fixture(scope="session")
def tiny_image(docker_client: docker.DockerClient) -> Iterator[str]:
    """The image of ``tiny.task``, for this session."""
    if not docker_client.images.list(tiny.BASE):
        missing(f"the image {tiny.BASE}", "farm images build, or run tests/run.sh")
    name = f"farm-test-tiny:{secrets.token_hex(4)}"
    asyncio.run(ImageStore().build(name, tiny.context(), timeout_s=120))
    yield name
    docker_client.images.remove(name, force=True)

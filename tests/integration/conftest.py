"""The daemon, the toolbox and a runtime, as the tests of sandboxes make them; and the image of a tiny task."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import docker
import pytest

from farm.build_config import read_build_settings
from farm.tasks import TaskBundle, images_of, load_task
from sandboxes.images.store import ImageStore
from tests.support.farm import tiny
from tests.support.outside import EitherRuntime
from tests.support.services import kept_port, missing
from tests.support.state_dirs import share


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Return a state directory that shares the packed layers of images, which are big, with all other tests here."""
    return share(tmp_path / "state")


@pytest.fixture
def any_runtime(request: pytest.FixtureRequest) -> EitherRuntime:
    """Return the fastest runtime of this machine, for a test whose result does not depend on the runtime."""
    found: EitherRuntime = request.getfixturevalue("docker_runtime" if os.geteuid() else "oci_runtime")
    return found


@pytest.fixture
def own_port() -> Iterator[int]:
    """A port of loopback that stays free for who is told to listen there, also again."""
    with kept_port() as port:
        yield port


@pytest.fixture(scope="session")
def tiny_image(docker_client: docker.DockerClient) -> Iterator[str]:
    """The image of ``tiny.task``, for this session."""
    if not docker_client.images.list(tiny.BASE):
        missing(f"the image {tiny.BASE}", "farm images build, or run tests/run.sh")
    name = f"farm-test-tiny:{secrets.token_hex(4)}"
    asyncio.run(ImageStore().build(name, tiny.context(), timeout_s=120))
    yield name
    docker_client.images.remove(name, force=True)


@pytest.fixture
async def images() -> AsyncIterator[ImageStore]:
    store = ImageStore(None, read_build_settings())
    yield store
    await store.close()


@pytest.fixture
def removed_later(docker_client: docker.DockerClient) -> Iterator[Callable[[str], None]]:
    """Images by their names, which go after the test."""
    names: list[str] = []
    yield names.append
    for name in names:
        if docker_client.images.list(name):
            docker_client.images.remove(name, force=True)


@pytest.fixture
def load_files(tmp_path: Path, removed_later: Callable[[str], None]) -> Callable[[Mapping[str, str]], TaskBundle]:
    """A task of its files; its images go after the test."""

    def load(files: Mapping[str, str]) -> TaskBundle:
        home = tmp_path / f"t{secrets.token_hex(3)}"
        for path, text in files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(text)
        bundle = load_task(home, state_dir=tmp_path)
        for name in sorted(images_of(bundle.task) - {bundle.task.image}):  # first what is made of it
            removed_later(name)
        removed_later(bundle.task.image)
        return bundle

    return load

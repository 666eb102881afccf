"""What bears our labels and was not made by us stays, and leads nowhere: an image's author chose them."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from sandboxes import OciRuntime, SandboxSpec
from tests.support.images import busybox_layer, made_image
from tests.support.outside import EitherRuntime
from tests.support.sandboxes.conformance import WAIT_S, living, text

pytestmark = pytest.mark.docker

Labelled = Callable[..., str]

EARLIER_BOOT = f"{'0' * 8}-{'0' * 4}-{'0' * 4}-{'0' * 4}-{'0' * 12} 0 1 "


@pytest.fixture
def labelled(docker_client: docker.DockerClient) -> Iterator[Labelled]:
    """An image that bears these labels, ``farm.`` before each."""
    with contextlib.ExitStack() as undo:

        def make(**labels: str) -> str:
            config = {"Labels": {f"farm.{key}": value for key, value in labels.items()}, "Cmd": ["/bin/sh"]}
            images = made_image(docker_client, [busybox_layer()], config)
            undo.callback(next, images, None)
            return next(images)

        yield make


def all_of_ours(home: Path) -> dict[str, str]:
    told = {"owner": "alice", "state_dir": str(home), "seal": "0" * 32, "trace": EARLIER_BOOT}
    return {**told, "sandbox": "theirs", "snapshot": "theirs", "pin": "theirs"}


async def test_reaper_ignores_directories_named_by_image_labels(
    either_runtime: EitherRuntime, labelled: Labelled, tmp_path: Path
) -> None:
    place = tmp_path / "app" / "owners" / "alice"
    place.mkdir(parents=True)
    (place / "precious").write_text("kept")
    labelled(**all_of_ours(tmp_path / "app"))
    labelled(owner="alice", state_dir=str(tmp_path / "app"), snapshot="theirs")
    await either_runtime.reap()
    assert [path.name for path in place.iterdir()] == ["precious"]


async def test_reaper_works_with_partly_labelled_images(
    either_runtime: EitherRuntime, labelled: Labelled, state_dir: Path
) -> None:
    labelled(snapshot="theirs")
    labelled(owner="a/../b", snapshot="theirs", sandbox="", state_dir="", seal="", trace="", pin="")
    dead = state_dir / "owners" / "dead"
    dead.mkdir()
    await either_runtime.reap()
    assert not dead.exists()


@pytest.mark.parametrize("mine", [False, True], ids=["another", "this"])
async def test_foreign_container_with_farm_labels_is_kept(
    either_runtime: EitherRuntime,
    docker_client: docker.DockerClient,
    labelled: Labelled,
    tmp_path: Path,
    mine: bool,
) -> None:
    """Also where its image's author knows an owner that lives here."""
    owner = either_runtime._owner
    labels = all_of_ours(tmp_path)
    if mine:
        home = str(owner.state_dir)
        labels |= {"owner": owner.name, "state_dir": home, "seal": owner.identity.seal, "trace": owner.trace}
    container = docker_client.containers.create(labelled(**labels))
    try:
        await either_runtime.reap()
        if isinstance(either_runtime, OciRuntime):
            await either_runtime._images.drop_strays()
        assert await living(either_runtime) == set()
        container.reload()
    finally:
        container.remove()


async def test_sandbox_on_image_with_farm_labels_is_ordinary(
    either_runtime: EitherRuntime, docker_client: docker.DockerClient, labelled: Labelled, tmp_path: Path
) -> None:
    async with either_runtime.scope(SandboxSpec(labelled(**all_of_ours(tmp_path)))) as sandbox:
        assert await living(either_runtime) == {sandbox.id}
        fork = await sandbox.fork()
        await either_runtime.reap()
        assert await living(either_runtime) == {sandbox.id, fork.id}
        assert text(await fork.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        await fork.remove()
        labels = [f"farm.state_dir={either_runtime._owner.state_dir}"]
        for container in docker_client.containers.list(all=True, filters={"label": labels}):
            assert "theirs" not in container.labels.values()

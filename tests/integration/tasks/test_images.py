"""Images built for real: what a build reaches, how it fails, and that no setting stays in an image."""

import asyncio
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from farm.build_config import read_build_settings
from farm.config import BuildOptions
from farm.tasks import BASE_IMAGE
from sandboxes.errors import ImageError, RuntimeUnavailable
from sandboxes.images.store import BuildSettings, ImageStore
from tests.support.registry import running_registry
from tests.support.services import missing

pytestmark = pytest.mark.docker


@pytest.fixture
def name(docker_client: docker.DockerClient) -> Iterator[str]:
    """A name for an image of one test; the image is removed after it."""
    if not docker_client.images.list(BASE_IMAGE):
        missing(f"the image {BASE_IMAGE}", "run `farm images base`, or run tests/run.sh")
    name = f"farm-test-build:{secrets.token_hex(6)}"
    yield name
    if docker_client.images.list(name):
        docker_client.images.remove(name, force=True)


def dockerfile(*lines: str) -> dict[str, bytes]:
    return {"Dockerfile": "\n".join([f"FROM {BASE_IMAGE}", *lines, ""]).encode()}


async def test_build_uses_package_index_without_keeping_settings(
    name: str, images: ImageStore, docker_client: docker.DockerClient
) -> None:
    context = dockerfile(
        "COPY mine /mine",
        f"RUN python3 -m pip download --no-cache-dir --no-deps --dest /found iniconfig # {name}",
        "RUN ls /run /found > /seen",
    )
    context["mine"] = b"content"
    lines: list[str] = []
    info = await images.build(name, context, timeout_s=120, executables=["mine"], on_line=lines.append)
    assert info.digest == docker_client.images.get(name).id
    assert any("naming to" in line for line in lines)
    seen = docker_client.containers.run(name, ["sh", "-c", "cat /seen; stat -c %a /mine; env"], remove=True).decode()
    assert "iniconfig-" in seen
    assert "\n755\n" in seen
    assert "3128" not in seen
    assert "3129" not in seen


async def test_failed_step_is_one_error_line(name: str, images: ImageStore) -> None:
    step = "RUN echo first; echo 'error: the disk is gone' >&2; exit 7"
    with pytest.raises(ImageError) as caught:
        await images.build(name, dockerfile(step), timeout_s=60)
    message = str(caught.value)
    assert message == f"{name} does not build: error: the disk is gone; {step!r} ended with exit code 7"
    assert await images.inspect(name) is None


async def test_failed_build_error_names_log_file(name: str, tmp_path: Path) -> None:
    store = ImageStore(None, read_build_settings(state_dir=tmp_path))
    with pytest.raises(ImageError, match="ended with exit code 7; its whole log is ") as caught:
        await store.build(name, dockerfile("RUN echo first; echo 'error: the last' >&2; exit 7"), timeout_s=60)
    await store.close()
    path = Path(str(caught.value).rpartition(" ")[2])
    assert path.parent == tmp_path / "log" / "builds"
    kept = await asyncio.to_thread(path.read_text)
    assert " first\n" in kept
    assert "error: the last" in kept
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"FORM x", "unknown instruction: FORM"), (b"FROM farm--x:no:tag\nRUN true", "invalid reference format")],
)
async def test_invalid_dockerfile_is_one_error_line(name: str, images: ImageStore, content: bytes, said: str) -> None:
    with pytest.raises(ImageError) as caught:
        await images.build(name, {"Dockerfile": content}, timeout_s=60)
    assert "\n" not in str(caught.value)
    assert f"{name} does not build: " in str(caught.value)
    assert said in str(caught.value)


async def test_build_without_dockerfile_is_refused(name: str, images: ImageStore) -> None:
    with pytest.raises(ImageError, match="no Dockerfile; add one"):
        await images.build(name, {"other": b""}, timeout_s=60)


@pytest.mark.parametrize("path", ["../escape", "/etc/passwd", "a/../../b", ""])
async def test_path_outside_build_context_is_refused(name: str, images: ImageStore, path: str) -> None:
    with pytest.raises(ImageError, match="not a path inside it"):
        await images.build(name, {**dockerfile(), path: b"x"}, timeout_s=60)


async def test_build_is_stopped_after_timeout(name: str, images: ImageStore) -> None:
    with pytest.raises(ImageError, match="not done after 3 s; raise build_timeout_sec"):
        await images.build(name, dockerfile(f"RUN sleep 600 # {name}"), timeout_s=3)
    assert await images.inspect(name) is None


async def test_cancelled_build_leaves_no_image(name: str, images: ImageStore) -> None:
    begun = asyncio.Event()

    def note(line: str) -> None:
        if "sleep 601" in line:
            begun.set()

    context = dockerfile(f"RUN sleep 601 # {name}")
    task = asyncio.ensure_future(images.build(name, context, timeout_s=600, on_line=note))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await images.inspect(name) is None


async def test_missing_buildkit_client_is_reported(name: str, tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Docker version 28.0.1, build x" || exit 1\n')
    client.chmod(0o755)
    store = ImageStore(None, BuildSettings(clients=(tmp_path / "nowhere", client)))
    with pytest.raises(ImageError, match=r"28\.x has no buildx.*apt-get install"):
        await store.build(name, dockerfile(), timeout_s=60)


async def test_rootfs_image_is_imported_listed_and_removed(name: str, images: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "motd").write_text("hello")
    info = await images.import_rootfs(tmp_path, name)
    assert [image.digest for image in await images.list(name)] == [info.digest]
    assert await images.remove(name)
    assert not await images.remove(name)
    assert await images.inspect(name) is None


async def test_unreachable_registry_of_base_is_infra_error(name: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        registry = f"127.0.0.1:{closed.getsockname()[1]}"
        base = f"{registry}/base:1"
        images = ImageStore(None, read_build_settings(BuildOptions(registries=(registry,))))
        with pytest.raises(RuntimeUnavailable, match=f"{name} does not build just now: .*connection refused") as caught:
            await images.build(name, {"Dockerfile": f"FROM {base}\nRUN true\n".encode()}, timeout_s=60)
    assert "\n" not in str(caught.value)


async def test_missing_base_image_is_task_error(name: str) -> None:
    with running_registry() as registry:
        place = registry.name("nowhere").partition("/")[0]
        images = ImageStore(None, read_build_settings(BuildOptions(registries=(place,))))
        content = f"FROM {registry.name('nowhere')}\nRUN true\n".encode()
        with pytest.raises(ImageError, match=f"{name} does not build: .*nowhere.*manifest unknown"):
            await images.build(name, {"Dockerfile": content}, timeout_s=60)


async def test_step_printing_network_error_is_task_error(name: str, images: ImageStore) -> None:
    step = "RUN echo 'dial tcp: lookup base: no such host'; false"
    with pytest.raises(ImageError, match="no such host"):
        await images.build(name, dockerfile(step), timeout_s=60)


async def test_missing_docker_daemon_is_reported(tmp_path: Path) -> None:
    store = ImageStore(f"unix://{tmp_path}/no.sock")
    with pytest.raises(RuntimeUnavailable, match=r"Docker is not running: .*no.sock does not exist"):
        await store.inspect("anything")

"""What tests of sandboxes stand on: a Docker daemon, a toolbox, and a tiny image made here."""

import io
import os
import secrets
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from sandboxes.runtimes.docker import DockerRuntime
from sandboxes.toolbox import Toolbox, ensure_toolbox
from tests.services import missing, require_program

pytest.register_assert_rewrite("tests.sandboxes.conformance")

APPLETS = (
    "awk cat chmod chown cp date dd df echo env false find grep head id kill ln ls mkdir mkfifo mknod mount mv nc "
    "printf ps pwd rm sed seq setsid sh sleep sort tail test touch tr true umount unshare wc wget yes"
)
PROBE = Path(__file__).with_name("probe.c")


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    """The daemon of this machine, for what a test needs beside the runtime."""
    try:
        client = docker.DockerClient(base_url="unix:///var/run/docker.sock", version="auto")
    except DockerException:
        missing("a Docker daemon", "start it (dockerd &), or run tests/run.sh")
        raise
    yield client
    client.close()


@pytest.fixture(scope="session")
def toolbox() -> Iterator[Toolbox]:
    """Built once where ``tests/run.sh`` names a place that outlives the session, else for this session alone."""
    kept = os.environ.get("FARMTEST_STATE_DIR")
    place = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="farm-toolbox-"))
    yield ensure_toolbox(place)
    if not kept:
        shutil.rmtree(place)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir()
    return path


@pytest.fixture
async def docker_runtime(
    docker_client: docker.DockerClient, toolbox: Toolbox, state_dir: Path
) -> AsyncIterator[DockerRuntime]:
    runtime = await DockerRuntime.open(state_dir=state_dir, toolbox=toolbox)
    yield runtime
    await runtime.close()


@pytest.fixture(scope="session")
def test_image(docker_client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """busybox, a program that tries system calls (``/bin/probe``), and what the contract asks for."""
    probe = tmp_path_factory.mktemp("probe") / "probe"
    subprocess.run([require_program("musl-gcc"), "-static", "-O1", "-o", str(probe), str(PROBE)], check=True)
    files = {
        "bin/busybox": Path(require_program("busybox")).read_bytes(),
        "bin/probe": probe.read_bytes(),
        "bin/tool": b"#!/bin/sh\necho tool\n",
        "etc/motd": b"hello\n",
        "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/home/guest:/bin/sh\n",
    }
    yield from _imported(docker_client, _rootfs(files, {f"bin/{name}": "busybox" for name in APPLETS.split()}))


@pytest.fixture(scope="session")
def scratch_image(docker_client: docker.DockerClient) -> Iterator[str]:
    """Nothing but one text file."""
    yield from _imported(docker_client, _rootfs({"only": b"this\n"}, {}))


def _imported(client: docker.DockerClient, rootfs: bytes) -> Iterator[str]:
    tag = secrets.token_hex(4)
    client.api.import_image_from_data(rootfs, repository="farm-test", tag=tag, changes=["LABEL farm.test=1"])
    yield f"farm-test:{tag}"
    client.images.remove(f"farm-test:{tag}", force=True)


def _rootfs(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        if links:
            directory = tarfile.TarInfo("tmp")
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(directory)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name.startswith("bin/") else 0o644
            tar.addfile(entry, io.BytesIO(content))
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()

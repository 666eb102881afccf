"""What tests of sandboxes stand on: a Docker daemon, a toolbox, and a tiny image made here."""

import io
import secrets
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import docker
import pytest

from tests.services import require_program

pytest.register_assert_rewrite("tests.sandboxes.conformance")

APPLETS = (
    "awk cat chmod chown cp date dd df echo env false find grep head id kill ln ls mkdir mkfifo mknod mount mv nc "
    "printf ps pwd rm sed seq setsid sh sleep sort tail test touch tr true umount unshare wc wget yes"
)
PROBE = Path(__file__).with_name("probe.c")


@pytest.fixture(scope="session")
def test_image(docker_client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from busybox_image(docker_client, tmp_path_factory)


def busybox_image(client: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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
    yield from _imported(client, _rootfs(files, {f"bin/{name}": "busybox" for name in APPLETS.split()}))


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
            for name in ("bin", "etc", "tmp", "repo", "srv", "srv/here"):
                directory = tarfile.TarInfo(name)
                directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
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

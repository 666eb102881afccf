"""Images made from nothing: layers as tar files, put together and handed to a daemon."""

import hashlib
import io
import json
import secrets
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import docker

from tests.support.services import require_program

APPLETS = (
    "awk cat chmod chown cp date dd df echo env false find grep head id kill ln ls mkdir mkfifo mknod mount mv nc "
    "printf ps pwd rm sed seq setsid sh sleep sort tail test touch tr true umount unshare wc wget yes"
)
PROGRAMS = Path(__file__).with_name("sandboxes")
DIRECTORIES = ("bin", "etc", "tmp", "repo", "srv", "srv/here")


class Layer:
    """One layer in the making. Owners and modes are as given, and what is below a directory needs none."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed when it is packed

    def file(
        self, path: str, content: bytes = b"", *, mode: int = 0o644, owner: int = 0, xattrs: Mapping[str, bytes] = {}
    ) -> "Layer":
        entry = self._entry(path, tarfile.REGTYPE, mode, owner)
        entry.size = len(content)
        entry.pax_headers = {
            f"SCHILY.xattr.{name}": value.decode("utf-8", "surrogateescape") for name, value in xattrs.items()
        }
        self._tar.addfile(entry, io.BytesIO(content))
        return self

    def directory(self, path: str, *, mode: int = 0o755, owner: int = 0) -> "Layer":
        self._tar.addfile(self._entry(path, tarfile.DIRTYPE, mode, owner))
        return self

    def symlink(self, path: str, target: str) -> "Layer":
        return self._link(path, tarfile.SYMTYPE, target)

    def hard_link(self, path: str, target: str) -> "Layer":
        return self._link(path, tarfile.LNKTYPE, target)

    def whiteout(self, path: str) -> "Layer":
        """What lower layers have at ``path`` is gone."""
        directory, slash, name = path.rpartition("/")
        return self.file(f"{directory}{slash}.wh.{name}")

    def opaque(self, path: str) -> "Layer":
        """What lower layers have below ``path`` is gone."""
        return self.directory(path).file(f"{path}/.wh..wh..opq")

    def packed(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()

    def _link(self, path: str, kind: bytes, target: str) -> "Layer":
        entry = self._entry(path, kind, 0o777, 0)
        entry.linkname = target
        self._tar.addfile(entry)
        return self

    def _entry(self, path: str, kind: bytes, mode: int, owner: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.uid, entry.gid = kind, mode, owner, owner
        return entry


def made_image(
    client: docker.DockerClient, layers: Sequence[Layer], config: Mapping[str, Any] | None = None
) -> Iterator[str]:
    """``config`` as an image's configuration has it (``User``, ``Env`` …). The image is removed when asked again.

    It is like no other, or whoever makes the same would have a part in it.
    """
    packed = [layer.packed() for layer in layers]
    digests = [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in packed]
    name = f"farm-test:{secrets.token_hex(4)}"
    described = {
        "architecture": client.version()["Arch"],
        "os": "linux",
        "config": {**(config or {}), "Labels": {**(config or {}).get("Labels", {}), "farm.test": name}},
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
    files = {f"{number}.tar": data for number, data in enumerate(packed)}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(files)}]
    archive = Layer().file("config.json", json.dumps(described).encode())
    archive.file("manifest.json", json.dumps(manifest).encode())
    for path, data in files.items():
        archive.file(path, data)
    client.images.load(archive.packed())
    yield name
    client.images.remove(name, force=True)


def text_image(client: docker.DockerClient) -> Iterator[str]:
    """Nothing but one text file."""
    yield from made_image(client, [Layer().file("only", b"this\n")])


def busybox_layer() -> Layer:
    """Make a layer of busybox, the attacking programs ``probe``, ``hog`` and ``hoard``, and the contract's files."""
    layer = Layer()
    for name in DIRECTORIES:
        layer.directory(name, mode=0o1777 if name == "tmp" else 0o755)
    layer.file("bin/busybox", Path(require_program("busybox")).read_bytes(), mode=0o755)
    for name in ("probe", "hog", "hoard"):
        layer.file(f"bin/{name}", compiled(PROGRAMS / f"{name}.c"), mode=0o755)
    layer.file("bin/tool", b"#!/bin/sh\necho tool\n", mode=0o755)
    layer.file("etc/motd", b"hello\n")
    layer.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1000:guest:/home/guest:/bin/sh\n")
    for name in APPLETS.split():
        layer.symlink(f"bin/{name}", "busybox")
    return layer


def busybox_image(client: docker.DockerClient) -> Iterator[str]:
    yield from made_image(client, [busybox_layer()])


@cache
def compiled(source: Path) -> bytes:
    """Compile a static program, once in a test process."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory, source.stem)
        command = [require_program("musl-gcc"), "-static", "-O1", "-Wall", "-Werror", "-o", str(program), str(source)]
        subprocess.run(command, check=True)
        return program.read_bytes()

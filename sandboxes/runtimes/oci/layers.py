"""The layers of images as directories: Docker's own, in place, or a copy made once."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sandboxes.errors import ImageError, RuntimeUnavailable
from sandboxes.runtimes.engine import Engine, Image
from sandboxes.runtimes.oci import mounts

UNPACKED = "unpacked"

FIRST_ID = 0x7000_0000
IDS = 65_536
"""Root inside is ``FIRST_ID`` outside: above what systemd gives to containers (its UIDS-GIDS), below 2³¹."""


async def directories(engine: Engine, image: Image, container: str, state_dir: Path) -> list[Path]:
    """Topmost first. Where Docker's own are no directories of this machine, ``container``, of that image, is exported.

    Raises ImageError.
    """
    if image.layers and all(await asyncio.to_thread(_all_there, image.layers)):
        return list(image.layers)
    unpacked = state_dir / UNPACKED / image.id.removeprefix("sha256:")
    if not unpacked.is_dir():
        await _unpack(engine, container, unpacked)
    return [unpacked]


async def sweep_copies(engine: Engine, state_dir: Path) -> None:
    """Remove the copies of images that the daemon has no more; it keeps those that a sandbox is made of."""
    for copy in await asyncio.to_thread(lambda: list((state_dir / UNPACKED).glob("[0-9a-f]*"))):
        try:
            await engine.image(f"sha256:{copy.name}")
        except ImageError:
            await asyncio.to_thread(shutil.rmtree, copy, ignore_errors=True)


def _all_there(layers: tuple[Path, ...]) -> list[bool]:
    return [layer.is_dir() for layer in layers]


async def _unpack(engine: Engine, container: str, place: Path) -> None:
    building = place.with_name(f".{place.name}.{os.getpid()}")
    building.mkdir(mode=0o755, parents=True)
    try:
        tar = await asyncio.create_subprocess_exec(
            "tar",
            "-x",
            "-p",
            "--numeric-owner",
            "--xattrs",
            "--xattrs-include=*",
            "-C",
            building,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert tar.stdin is not None
        async for chunk in engine.export(container):
            tar.stdin.write(chunk)
            await tar.stdin.drain()
        tar.stdin.close()
        _, said = await tar.communicate()
        if tar.returncode != 0:
            raise ImageError(f"an image does not unpack: {said.decode(errors='replace').strip()[-300:]}")
        with contextlib.suppress(OSError):  # somebody else has unpacked the same
            building.rename(place)
    finally:
        await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)


def open_user_namespace(starter: Path) -> int:
    """A user namespace in which ``IDS`` ids from 0 are those from ``FIRST_ID`` outside. Raises RuntimeUnavailable."""
    with subprocess.Popen(
        [starter, "--user-namespace"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if not process.stdout.read(1):
            said = process.stderr.read().decode(errors="replace").strip()
            raise RuntimeUnavailable(f"no user namespace: {said}; see user.max_user_namespaces")
        try:
            for kind in ("uid", "gid"):
                Path(f"/proc/{process.pid}/{kind}_map").write_text(f"0 {FIRST_ID} {IDS}\n")
            return os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RuntimeUnavailable(f"no user namespace: ids cannot be mapped: {error.strerror}") from None
        finally:
            process.stdin.close()


def clone_all(layers: Sequence[Path], user_namespace: int | None) -> list[int]:
    """Detached mounts of ``layers``, read-only, owners mapped. Raises RuntimeUnavailable."""
    clones: list[int] = []
    try:
        for layer in layers:
            clones.append(mounts.clone(layer, read_only=True, user_namespace=user_namespace))
    except OSError as error:
        for fd in clones:
            os.close(fd)
        raise RuntimeUnavailable(f"{layer} cannot be mounted with mapped owners: {error.strerror}") from None
    return clones

"""Provide the layers of images as directories: Docker's own, or a copy that is made once."""

import asyncio
import contextlib
import os
from collections.abc import Container
from pathlib import Path

from sandboxes.docker_engine.answers import Image
from sandboxes.docker_engine.api import Engine
from sandboxes.errors import ImageError
from sandboxes.linux.remove_tree import remove_tree
from sandboxes.ownership.owner import Owner

UNPACKED = "unpacked"


async def image_layers(engine: Engine, image: Image, container: str, owner: Owner) -> list[Path]:
    """Return the layers, topmost first. If Docker's are not visible here, export ``container``, which has the image.

    Raises ImageError.
    """
    if image.layers and all(await asyncio.to_thread(_are_directories, image.layers)):
        return list(image.layers)
    copies = owner.state_dir / UNPACKED
    unpacked = copies / image.id.removeprefix("sha256:")
    if not unpacked.is_dir():
        copies.mkdir(exist_ok=True)
        copies.chmod(0o700)  # an image may contain setuid programs
        # The temporary directory is in the owner's, so that the reaper removes it if the owner dies.
        await _unpack(engine, container, owner.sandbox_dir(f"unpack.{unpacked.name}"), unpacked)
    return [unpacked]


async def sweep_copies(engine: Engine, state_dir: Path, used: Container[str]) -> None:
    """Remove copies of images that the daemon no longer has. ``used``: image ids to keep."""
    for copy in await asyncio.to_thread(lambda: list((state_dir / UNPACKED).glob("[0-9a-f]*"))):
        if f"sha256:{copy.name}" in used:
            continue
        try:
            await engine.image(f"sha256:{copy.name}")
        except ImageError:
            await _remove(copy)


async def _remove(tree: Path) -> None:
    with contextlib.suppress(OSError):  # the next sweep or the reaper retries
        await asyncio.to_thread(remove_tree, tree)


def _are_directories(layers: tuple[Path, ...]) -> list[bool]:
    return [layer.is_dir() for layer in layers]


async def _unpack(engine: Engine, container: str, temporary: Path, target: Path) -> None:
    await _remove(temporary)  # leftover of an earlier process of this owner
    os.mkdir(temporary, 0o755)
    try:
        tar = await asyncio.create_subprocess_exec(
            "tar",
            "-x",
            "-p",
            "--numeric-owner",
            "--xattrs",
            "--xattrs-include=*",
            "-C",
            temporary,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert tar.stdin is not None
        async for chunk in engine.export(container):
            tar.stdin.write(chunk)
            await tar.stdin.drain()
        tar.stdin.close()
        _, stderr = await tar.communicate()
        if tar.returncode != 0:
            raise ImageError(
                f"image cannot be unpacked to {target.parent}: {stderr.decode(errors='replace').strip()[-300:]}; "
                "check its disk"
            )
        with contextlib.suppress(OSError):  # another process has unpacked the same image
            os.rename(temporary, target)
    finally:
        await _remove(temporary)

"""The layers of images as directories: Docker's own, in place, or a copy made once."""

import asyncio
import contextlib
import os
from collections.abc import Container
from pathlib import Path

from sandboxes.docker_engine.api import Engine, Image
from sandboxes.errors import ImageError
from sandboxes.linux.remove_tree import remove_tree
from sandboxes.ownership.owner import Owner

UNPACKED = "unpacked"


async def directories(engine: Engine, image: Image, container: str, owner: Owner) -> list[Path]:
    """Topmost first. Where Docker's own are no directories of this machine, ``container``, of that image, is exported.

    Raises ImageError.
    """
    if image.layers and all(await asyncio.to_thread(_all_there, image.layers)):
        return list(image.layers)
    copies = owner.state_dir / UNPACKED
    unpacked = copies / image.id.removeprefix("sha256:")
    if not unpacked.is_dir():
        copies.mkdir(exist_ok=True)
        copies.chmod(0o700)  # an image may bring programs that make root of whoever starts them
        # Among the owner's own, with which it goes when the owner dies.
        await _unpack(engine, container, owner.sandbox_dir(f"unpack.{unpacked.name}"), unpacked)
    return [unpacked]


async def sweep_copies(engine: Engine, state_dir: Path, used: Container[str]) -> None:
    """Remove the copies of images that the daemon has no more, but for those that are ``used``, by their ids."""
    for copy in await asyncio.to_thread(lambda: list((state_dir / UNPACKED).glob("[0-9a-f]*"))):
        if f"sha256:{copy.name}" in used:
            continue
        try:
            await engine.image(f"sha256:{copy.name}")
        except ImageError:
            await _remove(copy)


async def _remove(tree: Path) -> None:
    with contextlib.suppress(OSError):  # the next sweep, or whoever buries the owner, tries again
        await asyncio.to_thread(remove_tree, tree)


def _all_there(layers: tuple[Path, ...]) -> list[bool]:
    return [layer.is_dir() for layer in layers]


async def _unpack(engine: Engine, container: str, building: Path, place: Path) -> None:
    await _remove(building)  # an earlier process of this owner was killed meanwhile
    os.mkdir(building, 0o755)
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
            os.rename(building, place)
    finally:
        await _remove(building)

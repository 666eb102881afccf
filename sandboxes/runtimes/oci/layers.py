"""The layers of images as directories: Docker's own, in place, or a copy made once."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Container
from pathlib import Path

from sandboxes.errors import ImageError
from sandboxes.runtimes.engine import Engine, Image

UNPACKED = "unpacked"


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


async def sweep_copies(engine: Engine, state_dir: Path, used: Container[str]) -> None:
    """Remove the copies of images that the daemon has no more, but for those that are ``used``, by their ids."""
    for copy in await asyncio.to_thread(lambda: list((state_dir / UNPACKED).glob("[0-9a-f]*"))):
        if f"sha256:{copy.name}" in used:
            continue
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

"""``farm images``: what tasks boot from."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Table

from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console
from farm.cli.tasks import TaskSet, progress, read_taskset
from farm.config import Config, read_build_settings

if TYPE_CHECKING:
    from sandboxes.images import ImageInfo, ImageStore

app = typer.Typer(no_args_is_help=True, help="Images: what tasks boot from.")

T = TypeVar("T")
_OURS = "farm-"


@app.command()
def build(
    taskset: TaskSet,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the builder's own output.")] = False,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Build the images of a task set that are not here yet."""
    from farm.tasks import ensure_image

    settings = read_config(config, state_dir)
    bundles = read_taskset(taskset, settings)

    async def work(images: "ImageStore") -> "list[ImageInfo]":
        built = []
        with progress() as say:
            for bundle in bundles:
                say(f"image of {bundle.task.id}")
                built.append(await ensure_image(bundle, images, on_line=say if verbose else None))
        return built

    _print(_with_images(settings, work), as_json)


@app.command()
def pull(
    name: Annotated[str, typer.Argument(help="Name of an image at a registry.")],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Pull an image."""
    _print([_with_images(read_config(config), lambda images: images.pull(name))], as_json)


@app.command("list")
def list_images(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """The farm's images on this machine."""
    _print(list(_with_images(read_config(config), lambda images: images.list(_OURS))), as_json)


@app.command()
def gc(
    keep: Annotated[list[Path] | None, typer.Argument(metavar="[TASKSET]...", help="Task sets to keep.")] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> None:
    """Remove task images that none of the named task sets needs; one that a sandbox runs on stays."""
    from farm.tasks import TASK_PREFIX

    settings = read_config(config, state_dir)
    kept = {bundle.task.image for path in keep or () for bundle in read_taskset(path, settings)}

    async def work(images: "ImageStore") -> "list[ImageInfo]":
        found = await images.list(TASK_PREFIX)
        return [image for image in found if image.name not in kept and await images.remove(image.name)]

    _print(_with_images(settings, work), as_json)


def _with_images(config: Config, work: "Callable[[ImageStore], Awaitable[T]]") -> T:
    from sandboxes.images import ImageStore

    async def run() -> T:
        images = ImageStore(config.docker_host, read_build_settings())
        try:
            return await work(images)
        finally:
            await images.close()

    return asyncio.run(run())


def _print(images: "list[ImageInfo]", as_json: bool) -> None:
    if as_json:
        rows = [{"name": image.name, "digest": image.digest, "size_bytes": image.size_bytes} for image in images]
        print_json(rows)
        return
    table = Table("image", "digest", "size", box=None, pad_edge=False)
    for image in images:
        table.add_row(image.name, image.digest.removeprefix("sha256:")[:12], f"{image.size_bytes / 1e6:.0f} MB")
    table_console.print(table)

"""What commands on task sets stand on: a set that was named, sandboxes to work with, a line that says what goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.text import Text

from farm.build_config import read_build_settings
from farm.cli.errors import shown
from farm.cli.options import progress_console
from farm.config import Config

if TYPE_CHECKING:
    from farm.tasks import ReadTask, TaskBundle
    from sandboxes import Runtime
    from sandboxes.images import ImageStore

TaskSet = Annotated[
    Path, typer.Argument(metavar="TASKSET", help="A directory of tasks, one task, a .jsonl file, or a name.")
]

T = TypeVar("T")
Say = Callable[[str], None]


def chosen_taskset(path: Path, config: Config) -> Path:
    """The path of a task set that is given by path or by name. Raises TaskError."""
    from farm.tasks import is_taskset_name, named_taskset

    by_name = config.tasksets is not None and is_taskset_name(str(path)) and not path.exists()
    return named_taskset(str(path), config.tasksets) if by_name else path


def look_at_taskset(path: Path, config: Config) -> "tuple[ReadTask, ...]":
    """A task set to be shown, by path or by name: nothing of it is fetched. Raises TaskError."""
    from farm.tasks import read_taskset

    return tuple(read_taskset(chosen_taskset(path, config)))


def fetch_taskset(path: Path, config: Config) -> "tuple[TaskBundle, ...]":
    """A task set to be worked with, by path or by name: its sources are fetched. Raises TaskError."""
    from farm.tasks import load_taskset

    with progress() as say:
        return load_taskset(chosen_taskset(path, config), state_dir=config.state_dir, on_progress=say)


def with_sandboxes(
    config: Config,
    work: "Callable[[ImageStore, Runtime, Say], Awaitable[T]]",
    *,
    runtime: str = "docker",
    show: Callable[[], AbstractContextManager[Say]] | None = None,
) -> T:
    """Run ``work`` with images and sandboxes, and take every sandbox away again. ``show``: where it tells of itself."""
    from sandboxes import open_runtime
    from sandboxes.images import ImageStore
    from sandboxes.origins import ImageOrigins
    from sandboxes.uses import ImageUses

    async def run() -> T:
        async with AsyncExitStack() as stack:
            images = ImageStore(
                config.docker_host,
                read_build_settings(config.build, state_dir=config.state_dir),
                uses=ImageUses.of(config.state_dir),
                origins=ImageOrigins.of(config.state_dir, config.image_mirror),
                pulls=config.image_pulls,
            )
            stack.push_async_callback(images.close)
            opened = await open_runtime(
                runtime, state_dir=config.state_dir, docker_host=config.docker_host, granted=config.granted
            )
            stack.push_async_callback(opened.close)
            await opened.reap()  # of one like this that was killed
            say = stack.enter_context((show or progress)())
            return await work(images, opened, say)

    return asyncio.run(run())


@contextmanager
def progress() -> Iterator[Say]:
    """One line on standard error that says what goes on; plain lines where that is no terminal."""
    if not progress_console.is_terminal:
        yield lambda line: progress_console.print(line)
        return
    with progress_console.status("") as status:
        yield lambda line: status.update(Text(shown(line)))

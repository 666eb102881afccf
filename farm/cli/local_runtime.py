"""What commands on task sets stand on: a set that was named, sandboxes to work with, a line that says what goes on."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
    from farm.tasks import LoadedTask, TaskBundle, TaskFault
    from sandboxes import Runtime
    from sandboxes.images.store import ImageStore

TaskSet = Annotated[
    Path, typer.Argument(metavar="TASKSET", help="A directory of tasks, one task, a .jsonl file, or a name.")
]

T = TypeVar("T")
OnProgress = Callable[[str], None]


def chosen_taskset(path: Path, config: Config) -> Path:
    """The path of a task set that is given by path or by name. Raises TaskError."""
    from farm.tasks import is_taskset_name, named_taskset

    by_name = config.tasksets is not None and is_taskset_name(str(path)) and not path.exists()
    return named_taskset(str(path), config.tasksets) if by_name else path


def look_at_taskset(path: Path, config: Config) -> "tuple[LoadedTask, ...]":
    """A task set to be shown, by path or by name: nothing of it is fetched. Raises TaskError."""
    from farm.tasks import read_taskset

    return tuple(read_taskset(chosen_taskset(path, config)))


def look_at_each(path: Path, config: Config) -> "tuple[list[LoadedTask], list[TaskFault]]":
    """Read all tasks of a set that can be read, and return the faults of the others. Raise TaskError."""
    from farm.tasks import read_taskset

    faults: list[TaskFault] = []
    return list(read_taskset(chosen_taskset(path, config), faults=faults)), faults


def complain(faults: "Sequence[TaskFault]", read: int) -> int:
    """Print each fault on standard error; return the exit code."""
    for fault in faults:
        progress_console.print(shown(f"{fault.name}: {fault.error}"), markup=False)
    if faults:
        progress_console.print(f"{len(faults)} of {len(faults) + read} tasks cannot be used")
    return 1 if faults else 0


def fetch_taskset(path: Path, config: Config) -> "tuple[TaskBundle, ...]":
    """A task set to be worked with, by path or by name: its sources are fetched. Raises TaskError."""
    from farm.tasks import load_taskset

    with progress() as say:
        return load_taskset(chosen_taskset(path, config), state_dir=config.state_dir, on_progress=say)


def fetch_each(path: Path, config: Config) -> "tuple[list[tuple[Path, TaskBundle]], list[TaskFault]]":
    """Load all tasks of a set that can be loaded, with their directories, and return the faults of the others.

    Raise TaskError for what is wrong with the set as a whole.
    """
    from farm.tasks import gathered

    tasks, faults = look_at_each(path, config)
    loaded: list[tuple[Path, TaskBundle]] = []
    with progress() as say:
        for read in tasks:
            with gathered(faults, read.path.name):
                loaded.append((read.path, read.load(state_dir=config.state_dir, on_progress=say)))
    return loaded, faults


def with_sandboxes(
    config: Config,
    work: "Callable[[ImageStore, Runtime, OnProgress], Awaitable[T]]",
    *,
    runtime: str = "docker",
    show: Callable[[], AbstractContextManager[OnProgress]] | None = None,
) -> T:
    """Run ``work`` with images and sandboxes, and take every sandbox away again. ``show``: where it tells of itself."""
    from sandboxes import open_runtime
    from sandboxes.images.digest_pins import ImageOrigins
    from sandboxes.images.last_used import ImageUses
    from sandboxes.images.store import ImageStore

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
def progress() -> Iterator[OnProgress]:
    """Show a progress line on standard error, or plain lines if that is no terminal."""
    if not progress_console.is_terminal:
        yield lambda line: progress_console.print(line)
        return
    with progress_console.status("") as status:
        yield lambda line: status.update(Text(shown(line)))

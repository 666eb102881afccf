"""Shared parts of commands on task sets: the TASKSET argument, sandboxes for the length of a command, and progress."""

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
    from farm.tasks import TaskFault
    from sandboxes import Runtime
    from sandboxes.images.store import ImageStore

TaskSet = Annotated[
    Path, typer.Argument(metavar="TASKSET", help="A directory of tasks, one task, a .jsonl file, or a name.")
]

T = TypeVar("T")
OnProgress = Callable[[str], None]


def report_faults(faults: "Sequence[TaskFault]", usable: int) -> int:
    """Print each fault on standard error and return the exit code. ``usable``: tasks of the set without a fault."""
    for fault in faults:
        progress_console.print(shown(f"{fault.name}: {fault.error}"), markup=False)
    if faults:
        progress_console.print(f"{len(faults)} of {len(faults) + usable} tasks cannot be used")
    return 1 if faults else 0


def with_sandboxes(
    config: Config,
    work: "Callable[[ImageStore, Runtime, OnProgress], Awaitable[T]]",
    *,
    runtime: str = "docker",
    open_progress: Callable[[], AbstractContextManager[OnProgress]] | None = None,
) -> T:
    """Run ``work`` with an image store and a sandbox runtime, and return its result; all sandboxes end with it.

    ``open_progress`` opens the display of progress; by default one line.
    """
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
            await opened.reap()  # sandboxes of an earlier command that was killed
            on_progress = stack.enter_context((open_progress or progress)())
            return await work(images, opened, on_progress)

    return asyncio.run(run())


@contextmanager
def progress() -> Iterator[OnProgress]:
    """Show one line of progress on standard error, or all lines if that is no terminal."""
    if not progress_console.is_terminal:
        yield lambda line: progress_console.print(line)
        return
    with progress_console.status("") as status:
        yield lambda line: status.update(Text(shown(line)))

"""Task sets as requests name them: locate a set by its name or path, and prepare its tasks for a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from farm.core.run import TaskRef
from farm.tasks import TaskError, each_task, is_taskset_name, named_taskset, pack, task_ref
from farm.tasks.validation_file import FitTasks
from sandboxes.errors import SpecError
from sandboxes.tools import Toolset


class TasksetError(Exception):
    """A task set cannot be used. The message names the file, the key and the remedy."""


class Prepare(Protocol):
    """Load the tasks of a set. ``tools`` replaces the tools of each task, unless it is empty."""

    def __call__(
        self, path: Path, tools: Sequence[str], fit: FitTasks | None = None, /
    ) -> Sequence[tuple[TaskRef, bytes]]:
        """Return the reference and the packed bundle of each task. Runs in a thread.

        ``fit``: load only tasks that it accepts; it records the others. Raises TasksetError.
        """


def prepare_taskset(
    path: Path, tools: Sequence[str], fit: FitTasks | None = None, /, *, state_dir: Path
) -> Sequence[tuple[TaskRef, bytes]]:
    """Prepare a task set as ``Prepare`` says. Bundles are packed one by one, so that only one is in memory unpacked."""
    reading = Toolset.of(tools) if tools else None
    prepared: list[tuple[TaskRef, bytes]] = []
    try:
        for bundle in each_task(path, state_dir=state_dir, fit=fit):
            if reading is not None and bundle.task.retrieval is not None:
                reading.only_reading()
            prepared.append((task_ref(bundle), pack(bundle)))
    except TaskError as error:
        raise TasksetError(str(error)) from None
    except SpecError as error:
        raise TasksetError(f"taskset {path} holds retrieval tasks, and {error}") from None
    return prepared


def locate(taskset: str, tasksets_dir: Path | None) -> Path:
    """Return the path of the task set that a request names. ``tasksets_dir`` holds the named sets.

    Raises TasksetError.
    """
    if "\0" in taskset or not taskset.isprintable():
        raise TasksetError("taskset: write a path or a name without control characters")
    path = Path(taskset)
    if path.is_absolute():
        if ".." in path.parts:
            raise TasksetError("taskset: write the path without '..'")
        return _checked_path(path)
    if not is_taskset_name(taskset):
        remedy = "give an absolute path on the gateway's machine, or the name of a task set"
        raise TasksetError(f"taskset {taskset!r} is a relative path; {remedy}")
    try:
        return named_taskset(taskset, tasksets_dir)
    except TaskError as error:
        raise TasksetError(f"taskset {error}") from None


def _checked_path(path: Path) -> Path:
    try:
        exists = path.exists()
    except OSError as error:
        raise TasksetError(f"taskset {path}: {error.strerror}") from None
    if not exists:
        raise TasksetError(f"taskset {path} does not exist; name one that the gateway's machine has")
    return path

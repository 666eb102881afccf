"""A task set by its name or path, made ready to run: the seam between a request and the tasks on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from farm.core.run import TaskRef
from farm.tasks import TaskError, is_taskset_name, named_taskset
from farm.tasks.validation_file import FitTasks


class TasksetError(Exception):
    """A task set cannot be used; the message names the file, the key and the remedy."""


class Prepare(Protocol):
    """Loads a task set whose tasks are to have the tools that are named, or without any name their own."""

    def __call__(
        self, path: Path, tools: Sequence[str], fit: FitTasks | None = None, /
    ) -> Sequence[tuple[TaskRef, bytes]]:
        """Return each task's reference with its packed bundle. Runs in a thread.

        ``fit``: only tasks that it takes are loaded; it is told of those that cannot be. Raise TasksetError.
        """


def locate(taskset: str, named: Path | None) -> Path:
    """What a request means. ``named`` is the directory of the task sets that go by name. Raises TasksetError."""
    if "\0" in taskset or not taskset.isprintable():
        raise TasksetError("taskset: write a path or a name without control characters")
    path = Path(taskset)
    if path.is_absolute():
        if ".." in path.parts:
            raise TasksetError("taskset: write the path without '..'")
        return _there(path)
    if not is_taskset_name(taskset):
        remedy = "give an absolute path on the gateway's machine, or the name of a task set"
        raise TasksetError(f"taskset {taskset!r} is a relative path; {remedy}")
    try:
        return named_taskset(taskset, named)
    except TaskError as error:
        raise TasksetError(f"taskset {error}") from None


def _there(path: Path) -> Path:
    try:
        found = path.exists()
    except OSError as error:
        raise TasksetError(f"taskset {path}: {error.strerror}") from None
    if not found:
        raise TasksetError(f"taskset {path} is not there; name one that the gateway's machine has")
    return path

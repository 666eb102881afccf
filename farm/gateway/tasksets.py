"""A task set by its name or path, made ready to run: the seam between a request and the tasks on disk."""

from collections.abc import Callable, Sequence
from pathlib import Path

from farm.core.orders import TaskRef
from farm.tasks import TaskError, is_taskset_name, named_taskset


class TasksetError(Exception):
    """A task set cannot be used; the message names the file, the key and the remedy."""


Prepare = Callable[[Path, Sequence[str]], Sequence[tuple[TaskRef, bytes]]]
"""Loads a task set whose tasks are to have the tools that are named, or without any name their own: each task's
reference with its packed bundle. Runs in a thread; raises TasksetError."""


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

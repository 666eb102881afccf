"""A task set by its name or path, made ready to run: the seam between a request and the tasks on disk."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from farm.core.orders import TaskRef

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class TasksetError(Exception):
    """A task set cannot be used; the message names the file, the key and the remedy."""


Prepare = Callable[[Path], Sequence[tuple[TaskRef, bytes]]]
"""Loads a task set: each task's reference with its packed bundle. Runs in a thread; raises TasksetError."""


def locate(taskset: str, known: Path | None) -> Path:
    """What a request means. ``known`` is the directory of the task sets that go by name. Raises TasksetError."""
    if "\0" in taskset or not taskset.isprintable():
        raise TasksetError("taskset: write a path or a name without control characters")
    path = Path(taskset)
    if path.is_absolute():
        if ".." in path.parts:
            raise TasksetError("taskset: write the path without '..'")
    elif known is not None and _NAME.fullmatch(taskset):
        path = known / taskset
    else:
        raise TasksetError("taskset: give an absolute path on the gateway's machine, or the name of a known task set")
    try:
        found = path.exists()
    except OSError as error:
        raise TasksetError(f"taskset {path}: {error.strerror}") from None
    if not found:
        raise TasksetError(f"taskset {path} is not there; `farm tasks list` names those that are")
    return path

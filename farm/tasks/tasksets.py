"""Task sets: which directories they name, and their tasks one after the other, with a bound on all their bytes."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from farm.core.nesting import read_json
from farm.tasks.bundle import TaskBundle
from farm.tasks.directory import MAX_TASK_BYTES
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST, read_bounded, text
from farm.tasks.load import ReadTask, read_task
from farm.tasks.sources import OnProgress

MAX_SET_TASKS = 50_000
MAX_SET_BYTES = 1024 * 1024 * 1024
"""Limit for all files of a task set together: the gateway holds the bundles in memory until they are stored."""
MAX_LIST_BYTES = 16 * 1024 * 1024
"""Limit for a ``.jsonl`` file."""
_SPLIT = "split it into several task sets"

T = TypeVar("T")


def load_taskset(path: Path, *, state_dir: Path, on_progress: OnProgress | None = None) -> tuple[TaskBundle, ...]:
    """Load the tasks of a task set, in order; loading it again needs no network.

    A task set is a directory of task directories (sorted by name), a single task directory, or a ``.jsonl`` file of
    ``{"path": DIRECTORY}`` rows, relative to that file and inside its directory. Raises TaskError.
    """
    return tuple(each_task(path, state_dir=state_dir, on_progress=on_progress))


def each_task(path: Path, *, state_dir: Path, on_progress: OnProgress | None = None) -> Iterator[TaskBundle]:
    """Load the tasks of a task set one by one, so that the caller need not hold them all. Raises TaskError."""
    for read in read_taskset(path):
        yield read.load(state_dir=state_dir, on_progress=on_progress)


def read_taskset(path: Path) -> Iterator[ReadTask]:
    """Read the tasks of a task set one by one. Nothing is fetched. Raises TaskError."""
    room = MAX_SET_BYTES
    names: set[str] = set()
    for directory in task_directories(path):
        if room <= 0:
            raise TaskError(path, f"holds more than {MAX_SET_BYTES >> 20} MiB", _SPLIT)
        read = read_task(directory, room=min(room, MAX_TASK_BYTES))
        room -= read.size
        if read.task.id in names:
            raise TaskError(path, f"two tasks are named {read.task.id}", "rename one of them")
        names.add(read.task.id)
        yield read


def task_directories(path: Path) -> tuple[Path, ...]:
    """The directories of a set's tasks, each once. Raises TaskError."""
    try:
        found = _directories(path)
    except OSError as error:
        raise TaskError(path, error.strerror or str(error), "name a directory of tasks or a .jsonl file") from None
    if not found:
        raise TaskError(path, "holds no task", f"name a directory whose sub-directories hold a {MANIFEST}")
    return found


def _directories(path: Path) -> tuple[Path, ...]:
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return (path,)
        return tuple(sorted(_no_more(path, (child for child in path.iterdir() if (child / MANIFEST).is_file()))))
    if path.is_file() and path.suffix == ".jsonl":
        return tuple(_no_more(path, _rows(path)))
    what = "not a task set" if path.exists() else "no such file or directory"
    raise TaskError(path, what, "name a directory of tasks or a .jsonl file")


def _no_more(path: Path, found: Iterator[T]) -> Iterator[T]:
    for number, item in enumerate(found):
        if number >= MAX_SET_TASKS:
            raise TaskError(path, f"holds more than {MAX_SET_TASKS} tasks", _SPLIT)
        yield item


def _rows(path: Path) -> Iterator[Path]:
    home = path.resolve().parent
    lines: dict[Path, int] = {}
    for number, line in enumerate(text(path, read_bounded(path, MAX_LIST_BYTES, _SPLIT)).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            row = read_json(line)
            name = row["path"]
        except (ValueError, KeyError, TypeError):
            raise TaskError(path, "not a row", 'write {"path": "DIRECTORY"}', key=place) from None
        if not isinstance(name, str):
            raise TaskError(path, "not a row", 'write {"path": "DIRECTORY"}', key=place)
        directory = home / name
        try:
            resolved = directory.resolve()
            inside = resolved.is_relative_to(home)
            there = inside and (directory / MANIFEST).is_file()
        except (ValueError, OSError):  # a zero byte, half a surrogate pair, a name too long for a path
            raise TaskError(path, f"{name[:100]!r} can be no path", "correct it", key=place) from None
        if not inside:
            what = f"{name[:100]!r} leaves the directory of the file"
            raise TaskError(path, what, "name a path inside it", key=place)
        if not there:
            raise TaskError(path, f"{name[:100]!r} holds no {MANIFEST}", "correct the path", key=place)
        first = lines.setdefault(resolved, number)
        if first != number:
            raise TaskError(path, f"{name[:100]!r} is in line {first} already", "name each task once", key=place)
        yield directory

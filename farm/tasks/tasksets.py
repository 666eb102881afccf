"""Task sets: which directories they name, and their tasks one after the other, with a bound on all their bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from farm.core.nesting_limit import read_json
from farm.tasks.bundle import TaskBundle
from farm.tasks.directory import MAX_TASK_BYTES
from farm.tasks.errors import MOST_TOLD, TaskError, TaskFault, all_faults
from farm.tasks.files import MANIFEST, read_bounded, text
from farm.tasks.loader import LoadedTask, read_task
from farm.tasks.sdist.sdist import OnProgress
from farm.tasks.validation_file import FitTasks

MAX_SET_TASKS = 50_000
MAX_SET_BYTES = 1024 * 1024 * 1024
"""Limit for all files of a task set together: the gateway holds the bundles in memory until they are stored."""
MAX_LIST_BYTES = 16 * 1024 * 1024
"""Limit for a ``.jsonl`` file."""
_SPLIT = "split it into several task sets"

T = TypeVar("T")


_Faults = list[TaskFault]
"""Faults of single tasks, gathered while the rest of the set is read."""


def load_taskset(path: Path, *, state_dir: Path, on_progress: OnProgress | None = None) -> tuple[TaskBundle, ...]:
    """Load the tasks of a task set, in order; loading it again needs no network.

    A task set is a directory of task directories (sorted by name), a single task directory, or a ``.jsonl`` file of
    ``{"path": DIRECTORY}`` rows, relative to that file and inside its directory. Raise TaskError, which tells all
    tasks' faults.
    """
    return tuple(each_task(path, state_dir=state_dir, on_progress=on_progress))


def each_task(
    path: Path, *, state_dir: Path, on_progress: OnProgress | None = None, fit: FitTasks | None = None
) -> Iterator[TaskBundle]:
    """Load the tasks of a task set one by one, so that the caller need not hold them all.

    With ``fit`` only tasks that it takes are loaded, and it is told of faults. Without it, raise TaskError at the end
    if tasks have faults: it tells all of them.
    """
    faults: _Faults = []
    for read in read_taskset(path, faults=faults):
        if fit is not None and not fit.takes(read.task.id, read.task.digest):
            continue
        bundle = None
        with gathered(faults, read.path.name):
            bundle = read.load(state_dir=state_dir, on_progress=on_progress)
        if bundle is not None:
            yield bundle
        if fit is None and len(faults) >= MOST_TOLD:  # each may have waited for an index that does not answer
            break
    if fit is not None:
        for fault in faults:
            fit.leave_out(fault)
    elif faults:
        if (path / MANIFEST).is_file():  # the set is that task
            raise faults[0].error
        others = (
            f"validate the others with `farm tasks validate {path} --write`, then run them with `farm run --only-fit`"
        )
        raise all_faults(path, faults, f"correct each of them, or {others}")


@contextmanager
def gathered(faults: list[TaskFault], name: str) -> Iterator[None]:
    """Add the TaskError of the block to ``faults`` in place of raising it."""
    try:
        yield
    except TaskError as error:
        faults.append(TaskFault(name, error))


def read_taskset(path: Path, *, faults: list[TaskFault] | None = None) -> Iterator[LoadedTask]:
    """Read the tasks of a task set one by one. Nothing is fetched.

    Tasks that cannot be read are passed over and added to ``faults``; if it is None, the first one raises. Raise
    TaskError for what is wrong with the set as a whole.
    """
    room = MAX_SET_BYTES
    names: set[str] = set()
    for directory in task_directories(path, faults=faults):
        if room <= 0:
            raise TaskError(path, f"holds more than {MAX_SET_BYTES >> 20} MiB", _SPLIT)
        try:
            read = read_task(directory, room=min(room, MAX_TASK_BYTES))
            if read.task.id in names:
                raise TaskError(path, f"two tasks are named {read.task.id}", f"rename the one in {directory.name}")
        except TaskError as error:
            if faults is None:
                raise
            faults.append(TaskFault(directory.name, error))
            continue
        room -= read.size
        names.add(read.task.id)
        yield read


def task_directories(path: Path, *, faults: list[TaskFault] | None = None) -> tuple[Path, ...]:
    """Return the directories of a set's tasks, each once.

    Rows of a list that name no task are passed over and added to ``faults``; if it is None, the first one raises.
    Raise TaskError.
    """
    try:
        found = _directories(path, faults)
    except OSError as error:
        raise TaskError(path, error.strerror or str(error), "name a directory of tasks or a .jsonl file") from None
    if not found and not faults:
        raise TaskError(path, "holds no task", f"name a directory whose sub-directories hold a {MANIFEST}")
    return found


def _directories(path: Path, faults: _Faults | None) -> tuple[Path, ...]:
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return (path,)
        return tuple(sorted(_no_more(path, (child for child in path.iterdir() if (child / MANIFEST).is_file()))))
    if path.is_file() and path.suffix == ".jsonl":
        return tuple(_no_more(path, _rows(path, faults)))
    what = "not a task set" if path.exists() else "no such file or directory"
    raise TaskError(path, what, "name a directory of tasks or a .jsonl file")


def _no_more(path: Path, found: Iterator[T]) -> Iterator[T]:
    for number, item in enumerate(found):
        if number >= MAX_SET_TASKS:
            raise TaskError(path, f"holds more than {MAX_SET_TASKS} tasks", _SPLIT)
        yield item


def _rows(path: Path, faults: _Faults | None) -> Iterator[Path]:
    lines: dict[Path, int] = {}
    for number, line in enumerate(text(path, read_bounded(path, MAX_LIST_BYTES, _SPLIT)).splitlines(), start=1):
        if not line.strip():
            continue
        place = f"line {number}"
        try:
            directory, resolved = _row(path, line, place)
            first = lines.setdefault(resolved, number)
            if first != number:
                what = f"{str(directory)[:100]!r} is in line {first} already"
                raise TaskError(path, what, "name each task once", key=place)
        except TaskError as error:
            if faults is None:
                raise
            faults.append(TaskFault(place, error))
            continue
        yield directory


def _row(path: Path, line: str, place: str) -> tuple[Path, Path]:
    """Return the directory that a row names, and what that is without symlinks. Raise TaskError."""
    home = path.resolve().parent
    try:
        name = read_json(line)["path"]
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
    return directory, resolved

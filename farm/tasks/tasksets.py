"""Load task sets: find the directories of their tasks, and read them one by one within a limit for all bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from farm.core.nesting_limit import read_json
from farm.tasks.bundle import TaskBundle
from farm.tasks.directory import MAX_TASK_BYTES
from farm.tasks.errors import MAX_LISTED_FAULTS, TaskError, TaskFault, combined_error
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


def load_taskset(path: Path, *, state_dir: Path, on_progress: OnProgress | None = None) -> tuple[TaskBundle, ...]:
    """Load the tasks of a task set, in order. Loading it again needs no network.

    A task set is a directory of task directories (sorted by name), a single task directory, or a ``.jsonl`` file of
    ``{"path": DIRECTORY}`` rows, relative to that file and inside its directory. Raises TaskError with the faults of
    all tasks.
    """
    return tuple(each_task(path, state_dir=state_dir, on_progress=on_progress))


def each_task(
    path: Path, *, state_dir: Path, on_progress: OnProgress | None = None, fit: FitTasks | None = None
) -> Iterator[TaskBundle]:
    """Load the tasks of a task set one by one, so that the caller need not hold them all.

    With ``fit`` only tasks that it accepts are loaded, and it records faults. Without it, raises TaskError at the end
    with the faults of all tasks.
    """
    faults: list[TaskFault] = []
    for read in read_taskset(path, faults=faults):
        if fit is not None and not fit.accepts(read.task.id, read.task.digest):
            continue
        bundle = None
        with collect_faults(faults, read.path.name):
            bundle = read.load(state_dir=state_dir, on_progress=on_progress)
        if bundle is not None:
            yield bundle
        if fit is None and len(faults) >= MAX_LISTED_FAULTS:  # each fault may be a time-out of the package index
            break
    if fit is not None:
        for fault in faults:
            fit.leave_out(fault)
    elif faults:
        if (path / MANIFEST).is_file():  # the set is this one task
            raise faults[0].error
        others = (
            f"validate the others with `farm tasks validate {path} --write`, then run them with `farm run --only-fit`"
        )
        raise combined_error(path, faults, f"correct each of them, or {others}")


@contextmanager
def collect_faults(faults: list[TaskFault], name: str) -> Iterator[None]:
    """Add a TaskError of the block to ``faults`` instead of raising it."""
    try:
        yield
    except TaskError as error:
        faults.append(TaskFault(name, error))


def read_taskset(path: Path, *, faults: list[TaskFault] | None = None) -> Iterator[LoadedTask]:
    """Read the tasks of a task set one by one, without downloads.

    Tasks that cannot be read are skipped and added to ``faults``; if that is None, the first one raises. Raises
    TaskError for a fault of the set as a whole.
    """
    remaining = MAX_SET_BYTES
    names: set[str] = set()
    for directory in task_directories(path, faults=faults):
        if remaining <= 0:
            raise TaskError(path, f"holds more than {MAX_SET_BYTES >> 20} MiB", _SPLIT)
        try:
            read = read_task(directory, max_bytes=min(remaining, MAX_TASK_BYTES))
            if read.task.id in names:
                raise TaskError(path, f"two tasks are named {read.task.id}", f"rename the one in {directory.name}")
        except TaskError as error:
            if faults is None:
                raise
            faults.append(TaskFault(directory.name, error))
            continue
        remaining -= read.size
        names.add(read.task.id)
        yield read


def read_usable_tasks(path: Path) -> tuple[list[LoadedTask], list[TaskFault]]:
    """Read all tasks of a set that can be read, and return the faults of the others.

    Raises TaskError for a fault of the set as a whole.
    """
    faults: list[TaskFault] = []
    return list(read_taskset(path, faults=faults)), faults


def load_usable_tasks(
    path: Path, *, state_dir: Path, on_progress: OnProgress | None = None
) -> tuple[list[tuple[Path, TaskBundle]], list[TaskFault]]:
    """Load all tasks of a set that can be loaded, with their directories, and return the faults of the others.

    Raises TaskError for a fault of the set as a whole.
    """
    tasks, faults = read_usable_tasks(path)
    loaded: list[tuple[Path, TaskBundle]] = []
    for task in tasks:
        with collect_faults(faults, task.path.name):
            loaded.append((task.path, task.load(state_dir=state_dir, on_progress=on_progress)))
    return loaded, faults


def task_directories(path: Path, *, faults: list[TaskFault] | None = None) -> tuple[Path, ...]:
    """Return the directories of a set's tasks, each once.

    Rows of a list that name no task are skipped and added to ``faults``; if that is None, the first one raises. Raises
    TaskError.
    """
    try:
        directories = _directories(path, faults)
    except OSError as error:
        raise TaskError(path, error.strerror or str(error), "name a directory of tasks or a .jsonl file") from None
    if not directories and not faults:
        raise TaskError(path, "holds no task", f"name a directory whose sub-directories hold a {MANIFEST}")
    return directories


def _directories(path: Path, faults: list[TaskFault] | None) -> tuple[Path, ...]:
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return (path,)
        return tuple(sorted(_limited(path, (child for child in path.iterdir() if (child / MANIFEST).is_file()))))
    if path.is_file() and path.suffix == ".jsonl":
        return tuple(_limited(path, _rows(path, faults)))
    fault = "not a task set" if path.exists() else "no such file or directory"
    raise TaskError(path, fault, "name a directory of tasks or a .jsonl file")


def _limited(path: Path, items: Iterator[T]) -> Iterator[T]:
    """Yield the items. Raises TaskError after MAX_SET_TASKS."""
    for number, item in enumerate(items):
        if number >= MAX_SET_TASKS:
            raise TaskError(path, f"holds more than {MAX_SET_TASKS} tasks", _SPLIT)
        yield item


def _rows(path: Path, faults: list[TaskFault] | None) -> Iterator[Path]:
    lines: dict[Path, int] = {}
    for number, line in enumerate(text(path, read_bounded(path, MAX_LIST_BYTES, _SPLIT)).splitlines(), start=1):
        if not line.strip():
            continue
        line_name = f"line {number}"
        try:
            directory, resolved = _row(path, line, line_name)
            first = lines.setdefault(resolved, number)
            if first != number:
                fault = f"{str(directory)[:100]!r} is in line {first} already"
                raise TaskError(path, fault, "name each task once", key=line_name)
        except TaskError as error:
            if faults is None:
                raise
            faults.append(TaskFault(line_name, error))
            continue
        yield directory


def _row(path: Path, line: str, line_name: str) -> tuple[Path, Path]:
    """Return the directory that a row names, and its path without symlinks. Raises TaskError."""
    home = path.resolve().parent
    try:
        name = read_json(line)["path"]
    except (ValueError, KeyError, TypeError):
        raise TaskError(path, "not a row", 'write {"path": "DIRECTORY"}', key=line_name) from None
    if not isinstance(name, str):
        raise TaskError(path, "not a row", 'write {"path": "DIRECTORY"}', key=line_name)
    directory = home / name
    try:
        resolved = directory.resolve()
        is_inside = resolved.is_relative_to(home)
        has_manifest = is_inside and (directory / MANIFEST).is_file()
    except (ValueError, OSError, RuntimeError):
        # a zero byte, half a surrogate pair, a name too long for a path, symlinks in a circle
        raise TaskError(path, f"{name[:100]!r} is not a path", "correct it", key=line_name) from None
    if not is_inside:
        fault = f"{name[:100]!r} leaves the directory of the file"
        raise TaskError(path, fault, "name a path inside it", key=line_name)
    if not has_manifest:
        raise TaskError(path, f"{name[:100]!r} holds no {MANIFEST}", "correct the path", key=line_name)
    return directory, resolved

"""Task sets as requests name them: locate a set by its name or path, and prepare its tasks for a run."""

import asyncio
import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from farm.core.run import TaskRef
from farm.store import Store
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


_MOST_PREPARED = 8
"""The number of task sets of which the references are kept."""


@dataclass(slots=True)
class _Prepared:
    tasks: Mapping[str, TaskRef]
    stamp: int
    checked_at: float


class PreparedTasksets:
    """Task sets from which requests take single tasks. A set is loaded again only if its files have changed.

    ``preparing`` bounds how many sets are loaded at once. The bundles of all tasks of a set are put into the store.
    For ``trusted_s`` after a check of its files, a set is used without another check.
    """

    def __init__(self, store: Store, prepare: Prepare, preparing: asyncio.Semaphore, *, trusted_s: float = 5.0) -> None:
        self._store = store
        self._prepare = prepare
        self._preparing = preparing
        self._trusted_s = trusted_s
        self._kept: OrderedDict[tuple[Path, tuple[str, ...]], _Prepared] = OrderedDict()

    async def tasks(self, path: Path, tools: tuple[str, ...]) -> Mapping[str, TaskRef]:
        """Return the tasks of a set by their ids. Raises TasksetError, TaskError."""
        kept = self._kept.get((path, tools))
        if kept is not None and time.monotonic() - kept.checked_at < self._trusted_s:
            return kept.tasks
        async with self._preparing:
            kept = self._kept.get((path, tools))  # another request may have loaded it meanwhile
            if kept is not None and time.monotonic() - kept.checked_at < self._trusted_s:
                return kept.tasks
            stamp = await asyncio.to_thread(_stamp, path)
            if kept is None or kept.stamp != stamp:
                loaded = await asyncio.to_thread(self._prepare, path, tools)
                for task, bundle in loaded:
                    await self._store.put_bundle(task.digest, bundle)
                kept = _Prepared({task.id: task for task, _ in loaded}, stamp, 0.0)
            kept.checked_at = time.monotonic()
            self._kept[path, tools] = kept
            self._kept.move_to_end((path, tools))
            while len(self._kept) > _MOST_PREPARED:
                self._kept.popitem(last=False)
            return kept.tasks


def _stamp(path: Path) -> int:
    """Return a number that changes if a file below ``path`` is added, removed or written."""
    found: list[tuple[str, int, int]] = []
    for folder, _, files in os.walk(path):
        for name in files:
            full = os.path.join(folder, name)
            state = os.lstat(full)
            found.append((full, state.st_mtime_ns, state.st_size))
    return hash(tuple(sorted(found)))


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

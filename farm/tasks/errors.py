"""``TaskError``: a task cannot be used."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class TaskError(Exception):
    """A task cannot be used. One line: the file, the key if there is one, what is wrong, and the remedy."""

    def __init__(self, file: Path | str, fault: str, remedy: str, *, key: str = "") -> None:
        subject = f"{file}: {key}" if key else f"{file}"
        line = " ".join(f"{subject}: {fault}; {remedy}".split())
        super().__init__(line.encode(errors="backslashreplace").decode())  # a file's name need not be in UTF-8


@dataclass(frozen=True, slots=True)
class TaskFault:
    """A task of a set that cannot be used. ``name``: its directory, or its line in a list of tasks."""

    name: str
    error: TaskError


MAX_LISTED_FAULTS = 20
"""Maximum faults in one error."""


def combined_error(taskset: Path, faults: Sequence[TaskFault], remedy: str) -> TaskError:
    """Return one error that lists at most ``MAX_LISTED_FAULTS`` faults of a set."""
    listed = "; ".join(str(fault.error) for fault in faults[:MAX_LISTED_FAULTS])
    more = f"; and {len(faults) - MAX_LISTED_FAULTS} more" if len(faults) > MAX_LISTED_FAULTS else ""
    return TaskError(taskset, f"{_count(len(faults))} cannot be used: {listed}{more}", remedy)


def _count(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"

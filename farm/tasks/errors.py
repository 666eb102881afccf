"""What can be wrong with a task."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class TaskError(Exception):
    """A task cannot be used. One line: the file, the key where there is one, what is wrong, and the remedy."""

    def __init__(self, file: Path | str, what: str, remedy: str, *, key: str = "") -> None:
        place = f"{file}: {key}" if key else f"{file}"
        super().__init__(" ".join(f"{place}: {what}; {remedy}".split()))


@dataclass(frozen=True, slots=True)
class TaskFault:
    """One task of a set that cannot be used. ``name`` is that of its directory, or its place in a list of tasks."""

    name: str
    error: TaskError


MOST_TOLD = 20
"""So many faults fit into one error."""


def all_faults(taskset: Path, faults: Sequence[TaskFault], remedy: str) -> TaskError:
    """Return one error that tells every fault of a set, ``MOST_TOLD`` at most."""
    told = "; ".join(str(fault.error) for fault in faults[:MOST_TOLD])
    more = f"; and {len(faults) - MOST_TOLD} more" if len(faults) > MOST_TOLD else ""
    return TaskError(taskset, f"{_count(len(faults))} cannot be used: {told}{more}", remedy)


def _count(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks} tasks"

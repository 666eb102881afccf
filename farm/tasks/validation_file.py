"""``validated.json``: the results of validation by task digest, against which runs are checked."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from farm.tasks.errors import MAX_LISTED_FAULTS, TaskError, TaskFault
from farm.tasks.files import MANIFEST, read_bounded

NAME = "validated.json"
MAX_BYTES = 64 * 1024 * 1024


class ValidatedTask(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The validation of one task.

    ``image_digest`` is that of the image on the machine that validated; other machines build their own. ``timeout_s``:
    the time-out that follows from the gold solution. ``weak``: the share of wrong solutions that pass. Both are None if
    they were not measured.
    """

    digest: str
    image: str
    image_digest: str
    fit: bool
    reasons: tuple[str, ...] = ()
    timeout_s: float | None = None
    weak: float | None = None


class ValidatedSet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A report: the digest of the set, and its tasks by id."""

    format: Literal[1] = 1
    digest: str
    tasks: Mapping[str, ValidatedTask]


def set_digest(digests: Mapping[str, str]) -> str:
    """Return the SHA-256 over the ids and digests of the tasks."""
    lines = "".join(f"{task_id}\0{digest}\n" for task_id, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def validated_path(taskset: Path) -> Path:
    """Return the path of the report: in the directory of the set or of the one task, or beside a ``.jsonl`` file."""
    return taskset / NAME if taskset.is_dir() else taskset.with_name(f"{taskset.stem}.{NAME}")


def read_validated(taskset: Path) -> ValidatedSet | None:
    """Return the report, or None if there is none. Raises TaskError if it cannot be read."""
    path = validated_path(taskset)
    try:
        if not path.exists():
            return None
        content = read_bounded(path, MAX_BYTES, _REWRITE)
        return msgspec.json.decode(content, type=ValidatedSet)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TaskError(path, f"cannot be read ({error.strerror})", "make it readable") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # decoding stops at the first fault
        raise TaskError(path, f"is not a report of validation ({str(error)[:200]})", _REWRITE) from None


def write_validated(taskset: Path, tasks: Mapping[str, ValidatedTask]) -> Path:
    """Write the report in one step and return its path. Raises TaskError."""
    path = validated_path(taskset)
    entries = dict(sorted(tasks.items()))
    report = ValidatedSet(digest=set_digest({name: task.digest for name, task in entries.items()}), tasks=entries)
    stage = path.with_name(f".{path.name}.new")
    try:
        stage.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
        stage.replace(path)
    except OSError as error:
        raise TaskError(path, f"cannot be written ({error.strerror})", "make its directory writable") from None
    return path


def refuse_unvalidated(taskset: Path, digests: Mapping[str, str]) -> None:
    """Raise TaskError, listing all, if there is a report and tasks differ from what it calls fit.

    ``digests``: the tasks' digests by id. Without a report all tasks are accepted.
    """
    taskset = _validated_set(taskset)
    report = read_validated(taskset)
    if report is None:
        return
    reasons = {task_id: _unfit_reason(report, taskset, task_id, digest) for task_id, digest in digests.items()}
    unfit = [(task_id, reason) for task_id, reason in reasons.items() if reason]
    if not unfit:
        return
    first, *others = unfit
    listed = "; ".join([first[1], *(f"{task_id} {reason}" for task_id, reason in others[: MAX_LISTED_FAULTS - 1])])
    more = f"; and {len(unfit) - MAX_LISTED_FAULTS} more" if len(unfit) > MAX_LISTED_FAULTS else ""
    raise TaskError(
        first[0],
        f"{listed}{more}",
        f"{_REVALIDATE % taskset}, run the fit ones with `farm run --only-fit`, or all with `farm run --unvalidated`",
    )


class FitTasks:
    """The tasks of a set that its report calls fit. ``left_out``: the others with their reasons."""

    def __init__(self, taskset: Path) -> None:
        """Read the report. Raises TaskError if there is none or it cannot be read."""
        self._taskset = _validated_set(taskset)
        report = read_validated(self._taskset)
        if report is None:
            fault = "is missing, and only tasks that it calls fit were requested"
            raise TaskError(validated_path(self._taskset), fault, f"make it: `farm tasks validate {taskset} --write`")
        self._report = report
        self.left_out: list[tuple[str, str]] = []

    def accepts(self, task_id: str, digest: str) -> bool:
        """Return whether the task is fit, and record one that is not."""
        reason = _unfit_reason(self._report, self._taskset, task_id, digest)
        if reason:
            self.left_out.append((task_id, reason))
        return not reason

    def leave_out(self, fault: TaskFault) -> None:
        """Record a task that cannot be loaded."""
        self.left_out.append((fault.name, f"cannot be used: {fault.error}"))

    def none_left(self) -> TaskError:
        """Return the error for a set without a fit task."""
        listed = "; ".join(f"{task_id} {reason}" for task_id, reason in self.left_out[:MAX_LISTED_FAULTS])
        return TaskError(self._taskset, f"none of its tasks is fit ({listed})", _REVALIDATE % self._taskset)


_REVALIDATE = "validate again with `farm tasks validate %s --write`"


def _validated_set(taskset: Path) -> Path:
    """Return the path of the report's set: the enclosing set, for a single task without a report of its own."""
    is_single_task = (taskset / MANIFEST).is_file() and not validated_path(taskset).exists()
    return taskset.parent if is_single_task else taskset


def _unfit_reason(report: ValidatedSet, taskset: Path, task_id: str, digest: str) -> str:
    """Return why the task is not fit by the report; empty if it is."""
    entry = report.tasks.get(task_id)
    if entry is None:
        return f"is not in {validated_path(taskset)}"
    if entry.digest != digest:
        return f"was changed since {validated_path(taskset)} was written"
    return "" if entry.fit else f"was validated as unfit ({', '.join(entry.reasons) or 'no reason given'})"


_REWRITE = "remove it, or write it again with `farm tasks validate --write`"

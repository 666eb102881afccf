"""``validated.json``: what validation found of a task set, by digest, for whoever is about to run it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from farm.tasks.errors import MOST_TOLD, TaskError, TaskFault
from farm.tasks.files import MANIFEST, read_bounded

NAME = "validated.json"
MAX_BYTES = 64 * 1024 * 1024


class ValidatedTask(BaseModel):
    """``digest`` is the task's, ``image_digest`` that of the image it was judged in, which other machines build anew.
    ``timeout_s``: the verifier's time-out that follows from the gold solution; ``weak``: which share of the wrong
    solutions passes. Both are None where that was not tried."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    image: str
    image_digest: str
    fit: bool
    reasons: tuple[str, ...] = ()
    timeout_s: float | None = None
    weak: float | None = None


class ValidatedSet(BaseModel):
    """``digest`` is that of the set; ``tasks`` by id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    digest: str
    tasks: Mapping[str, ValidatedTask]


def set_digest(digests: Mapping[str, str]) -> str:
    """SHA-256 over ids and digests of the tasks."""
    lines = "".join(f"{task_id}\0{digest}\n" for task_id, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def validated_path(taskset: Path) -> Path:
    """In the directory of the set, or of the one task; beside a ``.jsonl`` file."""
    return taskset / NAME if taskset.is_dir() else taskset.with_name(f"{taskset.stem}.{NAME}")


def read_validated(taskset: Path) -> ValidatedSet | None:
    """None where there is none. Raises TaskError for one that cannot be read."""
    path = validated_path(taskset)
    try:
        if not path.exists():
            return None
        content = read_bounded(path, MAX_BYTES, _ANEW)
        return ValidatedSet.model_validate_json(content)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TaskError(path, f"cannot be read ({error.strerror})", "make it readable") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise TaskError(path, f"is no report of validation ({first['msg']})", _ANEW) from None


def write_validated(taskset: Path, tasks: Mapping[str, ValidatedTask]) -> Path:
    """In one step. Raises TaskError."""
    path = validated_path(taskset)
    every = dict(sorted(tasks.items()))
    report = ValidatedSet(digest=set_digest({name: task.digest for name, task in every.items()}), tasks=every)
    stage = path.with_name(f".{path.name}.new")
    try:
        stage.write_text(report.model_dump_json(indent=1) + "\n")
        stage.replace(path)
    except OSError as error:
        raise TaskError(path, f"cannot be written ({error.strerror})", "make its directory writable") from None
    return path


def refuse_unvalidated(taskset: Path, digests: Mapping[str, str]) -> None:
    """Raise TaskError if there is a report and tasks, by id in ``digests``, are not what it calls fit. It tells all."""
    taskset = _reported(taskset)
    report = read_validated(taskset)
    if report is None:
        return
    whys = {task_id: _why_not(report, taskset, task_id, digest) for task_id, digest in digests.items()}
    wrong = [(task_id, why) for task_id, why in whys.items() if why]
    if not wrong:
        return
    first, *others = wrong
    told = "; ".join([first[1], *(f"{task_id} {why}" for task_id, why in others[: MOST_TOLD - 1])])
    more = f"; and {len(wrong) - MOST_TOLD} more" if len(wrong) > MOST_TOLD else ""
    raise TaskError(
        first[0],
        f"{told}{more}",
        f"{_AGAIN % taskset}, run the fit ones with `farm run --only-fit`, or all with `farm run --unvalidated`",
    )


class FitTasks:
    """The tasks of a set that its report calls fit as they are. ``left_out``: the others, each with the reason."""

    def __init__(self, taskset: Path) -> None:
        """Raise TaskError if there is no report, or it cannot be read."""
        self._taskset = _reported(taskset)
        report = read_validated(self._taskset)
        if report is None:
            what = "is not there, and only what it calls fit was asked for"
            raise TaskError(validated_path(self._taskset), what, f"make it: `farm tasks validate {taskset} --write`")
        self._report = report
        self.left_out: list[tuple[str, str]] = []

    def takes(self, task_id: str, digest: str) -> bool:
        """Return whether the task is fit; note one that is not."""
        why = _why_not(self._report, self._taskset, task_id, digest)
        if why:
            self.left_out.append((task_id, why))
        return not why

    def leave_out(self, fault: TaskFault) -> None:
        self.left_out.append((fault.name, f"cannot be used: {fault.error}"))

    def none_left(self) -> TaskError:
        """Return what to say if no task is fit."""
        told = "; ".join(f"{task_id} {why}" for task_id, why in self.left_out[:MOST_TOLD])
        return TaskError(self._taskset, f"none of its tasks is fit ({told})", _AGAIN % self._taskset)


_AGAIN = "look again with `farm tasks validate %s --write`"


def _reported(taskset: Path) -> Path:
    """Return what the report is on: a single task without a report of its own has that of its set."""
    alone = (taskset / MANIFEST).is_file() and not validated_path(taskset).exists()
    return taskset.parent if alone else taskset


def _why_not(report: ValidatedSet, taskset: Path, task_id: str, digest: str) -> str:
    """Return why the task is not what was found fit; empty if it is."""
    known = report.tasks.get(task_id)
    if known is None:
        return f"is not in {validated_path(taskset)}"
    if known.digest != digest:
        return f"was changed since {validated_path(taskset)} was written"
    return "" if known.fit else f"was found unfit ({', '.join(known.reasons) or 'no reason given'})"


_ANEW = "remove it, or write it again with `farm tasks validate --write`"

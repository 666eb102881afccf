"""``validated.json``: what validation found of a task set, by digest, for whoever is about to run it."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from farm.tasks.errors import TaskError
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
    """Raise TaskError where a report is there and a task, by id in ``digests``, is not what was found fit.

    The report on one task alone is its own, or else that on the set in which it lies.
    """
    if (taskset / MANIFEST).is_file() and not validated_path(taskset).exists():
        taskset = taskset.parent
    report = read_validated(taskset)
    if report is None:
        return
    path = validated_path(taskset)
    for task_id, digest in digests.items():
        known = report.tasks.get(task_id)
        if known is None:
            what = f"is not in {path}"
        elif known.digest != digest:
            what = f"was changed since {path} was written"
        elif not known.fit:
            what = f"was found unfit ({', '.join(known.reasons) or 'no reason given'})"
        else:
            continue
        again = f"`farm tasks validate {taskset} --write`"
        remedy = f"look at it again with {again}, or run it all the same with `farm run --unvalidated`"
        raise TaskError(task_id, what, remedy)


_ANEW = "remove it, or write it again with `farm tasks validate --write`"

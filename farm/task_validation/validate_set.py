"""Validate many tasks: several at one time, resumable, and fixed on request."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from farm.task_generation.progress_log import ProgressLog
from farm.task_validation.fixes import apply_fixes
from farm.task_validation.gradings import gather_all
from farm.task_validation.result import FIXABLE, Reason, ValidationResult
from farm.task_validation.validate import OnProgress, validate
from farm.tasks import TaskBundle, TaskFault, load_task
from farm.tasks.schema.unsupported import unsupported_features
from farm.tasks.validation_file import ValidatedSet, ValidatedTask
from sandboxes.images.store import ImageStore
from sandboxes.interface import Runtime

MAX_FIX_ROUNDS = 3
_RESULT = TypeAdapter(ValidationResult)

OnResult = Callable[[ValidationResult], None]


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """The services of a validation.

    ``jobs`` bounds the gradings and the tasks at one time. ``write``: fix what can be fixed.
    """

    state_dir: Path
    images: ImageStore
    runtime: Runtime
    jobs: int
    write: bool
    on_progress: OnProgress


async def validate_set(
    taskset: Path, tasks: Sequence[tuple[Path, TaskBundle]], context: ValidationContext, on_result: OnResult
) -> list[ValidationResult]:
    """Validate tasks, which come with their directories, and return the results in order. Calls ``on_result`` for each.

    Results are logged by task digest until all tasks are judged, so that a stopped validation continues. A task whose
    image was not available is validated again by the next call. Raises what ``validate`` raises, and TaskError if a
    task cannot be fixed.
    """
    path = log_path(taskset, context.state_dir)
    log = ProgressLog(path)
    validator = _SetValidator(context, log)
    slots = asyncio.Semaphore(context.jobs)

    async def validate_one(directory: Path, bundle: TaskBundle) -> ValidationResult:
        async with slots:
            result = await validator.validate_and_fix(directory, bundle)
        on_result(result)
        return result

    results = await gather_all(*(validate_one(directory, bundle) for directory, bundle in tasks))
    if all(result.judged for result in results):
        path.unlink(missing_ok=True)
    return results


def log_path(taskset: Path, state_dir: Path) -> Path:
    """Return the path of the progress log of a set."""
    name = hashlib.sha256(str(taskset.resolve()).encode()).hexdigest()[:16]
    return state_dir / "validating" / f"{name}.jsonl"


class _SetValidator:
    def __init__(self, context: ValidationContext, log: ProgressLog) -> None:
        self._context = context
        self._log = log
        self._turns = asyncio.Semaphore(context.jobs)

    async def validate_and_fix(self, directory: Path, bundle: TaskBundle) -> ValidationResult:
        """Return the result of a task after all fixes."""
        result = await self._validate(directory, bundle)
        removed: list[str] = []
        for _ in range(MAX_FIX_ROUNDS if self._context.write else 0):
            prune, lenient, timeout_s = result.prune, result.lenient, result.new_timeout_s
            if not FIXABLE.issuperset(result.reasons) or not (prune or lenient or timeout_s is not None):
                break
            removed += prune
            apply_fixes(directory, remove=prune, never_false=lenient, timeout_s=timeout_s)
            bundle = await asyncio.to_thread(load_task, directory, state_dir=self._context.state_dir)
            if not prune and not lenient:
                # Only the time-out changed, and no grading depends on it.
                result = replace(result, digest=bundle.task.digest, new_timeout_s=None, problems=[], reasons=[])
                self._log_result(result)
                break
            for test in prune:
                reason = "depends on the order of tests" if test in result.order_dependent else "is flaky"
                self._context.on_progress(f"{bundle.task.id}: {test} {reason} and was removed from pass_to_pass")
            for test in lenient:
                self._context.on_progress(f"{bundle.task.id}: {test} is named in never_false now")
            self._context.on_progress(f"{bundle.task.id}: validating it again")
            result = await self._validate(directory, bundle)
        if removed:
            result = replace(result, removed=[*result.removed, *removed])
            self._log_result(result)
        return result

    async def _validate(self, directory: Path, bundle: TaskBundle) -> ValidationResult:
        logged = self._log.get(bundle.task.digest)
        if logged is not None:
            return _RESULT.validate_python(logged)
        context = self._context
        result = await validate(
            bundle, images=context.images, runtime=context.runtime, on_progress=context.on_progress, turns=self._turns
        )
        result.notes += unsupported_features(directory)
        self._log_result(result)
        return result

    def _log_result(self, result: ValidationResult) -> None:
        if not result.judged:
            return
        self._log.put(result.digest, _RESULT.dump_python(result, mode="json"))


def validated_tasks(
    results: Sequence[ValidationResult], previous: ValidatedSet | None = None
) -> dict[str, ValidatedTask]:
    """Return the entries of ``validated.json`` by task.

    An unjudged task keeps its entry of ``previous`` if its digest is the same.
    """
    previous_tasks = previous.tasks if previous else {}
    unjudged = [result for result in results if not result.judged and result.task_id in previous_tasks]
    return {
        result.task_id: previous_tasks[result.task_id]
        for result in unjudged
        if previous_tasks[result.task_id].digest == result.digest
    } | {
        result.task_id: ValidatedTask(
            digest=result.digest,
            image=result.image,
            image_digest=result.image_digest,
            fit=result.fit,
            reasons=tuple(reason.value for reason in result.reasons),
            timeout_s=result.timeout_s,
            weak=None if result.weak_share is None else round(result.weak_share, 3),
        )
        for result in results
        if result.judged
    }


def unreadable_tasks(faults: Sequence[TaskFault]) -> list[ValidationResult]:
    """Return a result for each task of a set that cannot be read."""
    return [ValidationResult(fault.name, "", "").mark_unjudged(Reason.TASK, str(fault.error)) for fault in faults]

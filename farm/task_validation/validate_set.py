"""``farm tasks validate`` of many tasks: several at once, resumable, revised and reported where that is asked for."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from farm.task_generation.progress_log import ProgressLog
from farm.task_validation.fixes import revise
from farm.task_validation.gradings import gather_all
from farm.task_validation.result import REVISED, Reason, ValidationResult
from farm.task_validation.validate import OnProgress, validate
from farm.tasks import TaskBundle, TaskFault, load_task
from farm.tasks.schema.unsupported import unsupported_features
from farm.tasks.validation_file import ValidatedSet, ValidatedTask
from sandboxes.images.store import ImageStore
from sandboxes.interface import Runtime

MOST_REVISIONS = 3
_FINDING = TypeAdapter(ValidationResult)

Done = Callable[[ValidationResult], None]


@dataclass(frozen=True, slots=True)
class ValidationContext:
    """What tasks are validated with, ``jobs`` gradings and tasks at once. ``write``: mend what can be."""

    state_dir: Path
    images: ImageStore
    runtime: Runtime
    jobs: int
    write: bool
    on_progress: OnProgress


async def validate_set(
    taskset: Path, tasks: Sequence[tuple[Path, TaskBundle]], bench: ValidationContext, done: Done
) -> list[ValidationResult]:
    """The findings in the order of ``tasks``, which come with their directories; ``done`` hears of each.

    What was found is kept, by the tasks' digests, until all are judged: begun again after it was stopped it goes on,
    and after that it begins anew. It goes on, too, if a task was not judged for want of its image. Raises what
    ``validate`` raises, and TaskError where a task cannot be revised.
    """
    kept = journal_path(taskset, bench.state_dir)
    journal = ProgressLog(kept)
    judge = _Judge(bench, journal)
    places = asyncio.Semaphore(bench.jobs)

    async def one(directory: Path, bundle: TaskBundle) -> ValidationResult:
        async with places:
            finding = await judge.settle(directory, bundle)
        done(finding)
        return finding

    found = await gather_all(*(one(directory, bundle) for directory, bundle in tasks))
    if all(finding.judged for finding in found):
        kept.unlink(missing_ok=True)
    return found


def journal_path(taskset: Path, state_dir: Path) -> Path:
    name = hashlib.sha256(str(taskset.resolve()).encode()).hexdigest()[:16]
    return state_dir / "validating" / f"{name}.jsonl"


class _Judge:
    def __init__(self, bench: ValidationContext, journal: ProgressLog) -> None:
        self._bench = bench
        self._journal = journal
        self._turns = asyncio.Semaphore(bench.jobs)

    async def settle(self, directory: Path, bundle: TaskBundle) -> ValidationResult:
        """The finding of a task as it is in the end."""
        finding = await self._judge(directory, bundle)
        removed: list[str] = []
        for _ in range(MOST_REVISIONS if self._bench.write else 0):
            prune, lenient, timeout_s = finding.prune, finding.lenient, finding.new_timeout_s
            if not REVISED.issuperset(finding.reasons) or not (prune or lenient or timeout_s is not None):
                break
            removed += prune
            revise(directory, prune=prune, never_false=lenient, timeout_s=timeout_s)
            bundle = await asyncio.to_thread(load_task, directory, state_dir=self._bench.state_dir)
            if not prune and not lenient:
                # The same task with another time-out, which nothing that was judged depends on.
                finding = replace(finding, digest=bundle.task.digest, new_timeout_s=None, problems=[], reasons=[])
                self._keep(finding)
                break
            for test in prune:
                why = "depends on the order of tests" if test in finding.order_dependent else "is flaky"
                self._bench.on_progress(f"{bundle.task.id}: {test} {why} and was taken out of pass_to_pass")
            for test in lenient:
                self._bench.on_progress(f"{bundle.task.id}: {test} is named in never_false now")
            self._bench.on_progress(f"{bundle.task.id}: judging it again")
            finding = await self._judge(directory, bundle)
        if removed:
            finding = replace(finding, removed=[*finding.removed, *removed])
            self._keep(finding)
        return finding

    async def _judge(self, directory: Path, bundle: TaskBundle) -> ValidationResult:
        known = self._journal.get(bundle.task.digest)
        if known is not None:
            return _FINDING.validate_python(known)
        bench = self._bench
        finding = await validate(
            bundle, images=bench.images, runtime=bench.runtime, say=bench.on_progress, turns=self._turns
        )
        finding.notes += unsupported_features(directory)
        self._keep(finding)
        return finding

    def _keep(self, finding: ValidationResult) -> None:
        if not finding.judged:
            return
        self._journal.put(finding.digest, _FINDING.dump_python(finding, mode="json"))


def validated_tasks(
    findings: Sequence[ValidationResult], former: ValidatedSet | None = None
) -> dict[str, ValidatedTask]:
    """Return what ``validated.json`` says of each that was judged; of the others what ``former`` says of the same."""
    known = former.tasks if former else {}
    kept = [finding for finding in findings if not finding.judged and finding.task_id in known]
    return {
        finding.task_id: known[finding.task_id] for finding in kept if known[finding.task_id].digest == finding.digest
    } | {
        finding.task_id: ValidatedTask(
            digest=finding.digest,
            image=finding.image,
            image_digest=finding.image_digest,
            fit=finding.fit,
            reasons=tuple(reason.value for reason in finding.reasons),
            timeout_s=finding.timeout_s,
            weak=None if finding.weak_share is None else round(finding.weak_share, 3),
        )
        for finding in findings
        if finding.judged
    }


def unreadable(faults: Sequence[TaskFault]) -> list[ValidationResult]:
    """Return a finding for each task of a set that cannot be read."""
    return [ValidationResult(fault.name, "", "").unjudged(Reason.TASK, str(fault.error)) for fault in faults]

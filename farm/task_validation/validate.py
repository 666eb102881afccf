"""Validate one task: doing nothing must earn 0 and the gold solution 1, in every grading."""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from farm.core.change import Change
from farm.core.task import GradingMode
from farm.grading import GradingError, take_baseline, take_change
from farm.task_validation.cheats import scripted_cheats, stock_cheats
from farm.task_validation.gradings import TaskValidator
from farm.task_validation.local_episodes import cheat_by_episodes, judge_by_episodes
from farm.task_validation.result import Reason, ValidationResult
from farm.task_validation.retrieval_check import missing_lines
from farm.task_validation.solution_leaks import find_solution_leaks, solution_fingerprint
from farm.tasks import TaskBundle, TaskError, await_health, ensure_image, sandbox_spec
from farm.tasks.images import policy_spec
from sandboxes.errors import ImageError, PathError, RuntimeUnavailable, SpecError
from sandboxes.images.store import ImageStore
from sandboxes.interface import Runtime

SOLVE_TIMEOUT_S = 600

OnProgress = Callable[[str], None]


async def validate(
    bundle: TaskBundle,
    *,
    images: ImageStore,
    runtime: Runtime,
    on_progress: OnProgress,
    once: bool = False,
    turns: asyncio.Semaphore | None = None,
) -> ValidationResult:
    """Build the image, search it for the solution, and grade changes whose reward is known.

    These are nothing done, the gold solution, cheats and wrong solutions. ``once``: grade nothing done and the gold
    solution once each, and no cheats. ``turns`` bounds the gradings at one time, of all callers that share it; by
    default one per core.

    Faults of the task are in the result, also if its image is not available now. Raises RuntimeUnavailable and other
    errors of ``sandboxes`` for faults of the machine.
    """
    result = ValidationResult(bundle.task.id, bundle.task.digest, bundle.task.image)
    started = time.monotonic()
    on_progress(f"{bundle.task.id}: image")
    try:
        try:
            result.image_digest = (await ensure_image(bundle, images)).digest
        except RuntimeUnavailable as error:
            await images.engine()  # raises if the daemon is down, which concerns all tasks
            return result.mark_unjudged(Reason.MACHINE, f"its image is not available now: {error}")
        result.build_s = time.monotonic() - started
        turns = turns or asyncio.Semaphore(os.cpu_count() or 1)
        await _check_history(bundle, runtime, result)
        if bundle.task.retrieval is not None:
            for problem in await missing_lines(bundle, bundle.task.retrieval, runtime):
                result.refuse(Reason.GOLD, problem)
        if bundle.task.retrieval or bundle.task.steps or bundle.task.verifier.mode is not GradingMode.PATCH:
            await _validate_by_episodes(bundle, runtime, turns, result, on_progress)
        else:
            await _validate_change(bundle, runtime, turns, result, on_progress, once)
    except (ImageError, SpecError, TaskError, GradingError) as error:
        result.refuse(Reason.TASK, str(error))
    result.took_s = time.monotonic() - started
    return result


async def _validate_change(
    bundle: TaskBundle,
    runtime: Runtime,
    turns: asyncio.Semaphore,
    result: ValidationResult,
    on_progress: OnProgress,
    once: bool,
) -> None:
    """Validate a task that is graded from a change."""
    task = bundle.task
    gold = await gold_change(bundle, runtime)
    present = await _read_present(bundle, gold, runtime, result)
    validator = TaskValidator(bundle, runtime, turns, result)
    on_progress(f"{task.id}: nothing done and the gold solution")
    if once:
        await validator.judge_once(gold)
        return
    await validator.judge(gold)
    if {Reason.TIME_OUT}.issuperset(result.reasons):
        on_progress(f"{task.id}: cheats and wrong solutions")
        await validator.cheat(gold, present)
        await cheat_by_episodes(scripted_cheats(bundle), runtime, turns, result)


async def _validate_by_episodes(
    bundle: TaskBundle, runtime: Runtime, turns: asyncio.Semaphore, result: ValidationResult, on_progress: OnProgress
) -> None:
    """Validate a task whose answer, steps or verifier need whole episodes."""
    task = bundle.task
    on_progress(f"{task.id}: nothing done and the known answer, in episodes")
    await judge_by_episodes(bundle, runtime, turns, result)
    if result.reasons:
        return
    cheats = scripted_cheats(bundle)
    if not (task.retrieval or task.steps):
        with suppress(PathError):  # a separate verifier may need no workspace
            gold = await gold_change(bundle, runtime)
            present = await _read_present(bundle, gold, runtime, result)
            changes = stock_cheats(task.verifier, gold, present)
            cheats |= {
                description: replace(bundle, gold=change, solution={}) for description, change in changes.items()
            }
    on_progress(f"{task.id}: cheats")
    await cheat_by_episodes(cheats, runtime, turns, result)


async def gold_change(bundle: TaskBundle, runtime: Runtime) -> Change:
    """Return the gold change, or the change that ``solution/solve.sh`` makes.

    Raises TaskError if there is no solution or the script fails.
    """
    if bundle.gold is not None:
        return bundle.gold
    task = bundle.task
    if "solve.sh" not in bundle.solution:
        raise TaskError(task.id, "has no gold solution", "add solution/solve.sh")
    async with runtime.scope(policy_spec(task, labels={"purpose": "solving"})) as sandbox:
        await await_health(sandbox, task)
        baseline = await take_baseline(sandbox, task.workspace)
        for path, file in bundle.solution.items():
            await sandbox.write_file(f"/solution/{path}", file.content, executable=file.executable, parents=True)
        solved = await sandbox.exec(
            ("bash", "/solution/solve.sh"),
            env=dict(bundle.solution_env),
            timeout_s=SOLVE_TIMEOUT_S,
            merge_stderr=True,
        )
        if solved.exit_code != 0:
            network = f"with no network but {', '.join(task.network)}" if task.network else "without a network"
            raise TaskError(task.id, f"solution/solve.sh ended with {solved.exit_code}", f"make it run {network}")
        return await take_change(sandbox, task.workspace, baseline)


async def _check_history(bundle: TaskBundle, runtime: Runtime, result: ValidationResult) -> None:
    """Refuse a repository with more than one commit, because another commit may hold the answer."""
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "validating"})) as sandbox:
        script = (
            "command -v git > /dev/null && [ -d .git ] || exit 0; "
            "git rev-list --all --reflog | sed 1d; git stash list; "
            "git fsck --unreachable --no-reflogs --no-progress 2>&1"
        )
        history = await sandbox.exec(("sh", "-c", script), timeout_s=120, merge_stderr=True)
    if history.exit_code or history.stdout.head.strip():
        result.refuse(
            Reason.HISTORY, "the repository holds more than one commit; create it again in environment/Dockerfile"
        )


async def _read_present(
    bundle: TaskBundle, gold: Change, runtime: Runtime, result: ValidationResult
) -> dict[str, bytes]:
    """Return the image's files at the gold change's paths. Refuse an image that holds parts of the solution."""
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "validating"})) as sandbox:
        present: dict[str, bytes] = {}
        for file in gold.files:
            with suppress(PathError):
                present[file.path] = await sandbox.read_file(f"{bundle.task.workspace}/{file.path}")
        leaks = await find_solution_leaks(sandbox, await asyncio.to_thread(solution_fingerprint, gold, present))
        if leaks is None:
            result.notes.append("the image has no Python, so it was not searched for parts of the solution")
        for leak in leaks or ():
            result.refuse(Reason.RESIDUE, f"{leak.path} holds {leak.what}")
    return present

"""``farm tasks validate``: a task is fit when doing nothing is judged 0 and the gold solution 1, every time."""

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
from farm.task_validation.retrieval_check import misplaced
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
    say: OnProgress,
    once: bool = False,
    turns: asyncio.Semaphore | None = None,
) -> ValidationResult:
    """Build, look for what is left of the solution, judge nothing done and the gold solution, or the known answer, then
    cheats and wrong solutions. ``once``: each is judged once, and no cheats are.

    ``turns``: so many gradings at once, of all that share them; one a core by default. What is wrong with the task is
    in the finding, also that its image cannot be had just now; raises RuntimeUnavailable and other errors of
    ``sandboxes`` for what is wrong with the machine.
    """
    finding = ValidationResult(bundle.task.id, bundle.task.digest, bundle.task.image)
    started = time.monotonic()
    say(f"{bundle.task.id}: image")
    try:
        try:
            finding.image_digest = (await ensure_image(bundle, images)).digest
        except RuntimeUnavailable as error:
            await images.engine()  # a daemon that is away concerns all tasks
            return finding.unjudged(Reason.MACHINE, f"its image cannot be had just now: {error}")
        finding.build_s = time.monotonic() - started
        turns = turns or asyncio.Semaphore(os.cpu_count() or 1)
        await _look_at_history(bundle, runtime, finding)
        if bundle.task.retrieval is not None:
            for problem in await misplaced(bundle, bundle.task.retrieval, runtime):
                finding.refuse(Reason.GOLD, problem)
        if bundle.task.retrieval or bundle.task.steps or bundle.task.verifier.mode is not GradingMode.PATCH:
            await _play(bundle, runtime, turns, finding, say)
        else:
            await _prove(bundle, runtime, turns, finding, say, once)
    except (ImageError, SpecError, TaskError, GradingError) as error:
        finding.refuse(Reason.TASK, str(error))
    finding.took_s = time.monotonic() - started
    return finding


async def _prove(
    bundle: TaskBundle,
    runtime: Runtime,
    turns: asyncio.Semaphore,
    finding: ValidationResult,
    say: OnProgress,
    once: bool,
) -> None:
    task = bundle.task
    gold = await gold_change(bundle, runtime)
    present = await _present(bundle, gold, runtime, finding)
    proof = TaskValidator(bundle, runtime, turns, finding)
    say(f"{task.id}: nothing done and the gold solution")
    if once:
        await proof.judge_once(gold)
        return
    await proof.judge(gold)
    if {Reason.TIME_OUT}.issuperset(finding.reasons):
        say(f"{task.id}: cheats and wrong solutions")
        await proof.cheat(gold, present)
        await cheat_by_episodes(scripted_cheats(bundle), runtime, turns, finding)


async def _play(
    bundle: TaskBundle, runtime: Runtime, turns: asyncio.Semaphore, finding: ValidationResult, say: OnProgress
) -> None:
    """What is judged by an answer, step by step or where the policy worked needs whole episodes."""
    task = bundle.task
    say(f"{task.id}: nothing done and the known answer, in episodes")
    await judge_by_episodes(bundle, runtime, turns, finding)
    if finding.reasons:
        return
    cheats = scripted_cheats(bundle)
    if not (task.retrieval or task.steps):
        with suppress(PathError):  # a verifier of its own may ask for no workspace
            gold = await gold_change(bundle, runtime)
            present = await _present(bundle, gold, runtime, finding)
            changes = stock_cheats(task.verifier, gold, present)
            cheats |= {what: replace(bundle, gold=change, solution={}) for what, change in changes.items()}
    say(f"{task.id}: cheats")
    await cheat_by_episodes(cheats, runtime, turns, finding)


async def gold_change(bundle: TaskBundle, runtime: Runtime) -> Change:
    """The gold change, or what ``solution/solve.sh`` does to the workspace."""
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
        result = await sandbox.exec(
            ("bash", "/solution/solve.sh"),
            env=dict(bundle.solution_env),
            timeout_s=SOLVE_TIMEOUT_S,
            merge_stderr=True,
        )
        if result.exit_code != 0:
            reach = f"with no network but {', '.join(task.network)}" if task.network else "without a network"
            raise TaskError(task.id, f"solution/solve.sh ended with {result.exit_code}", f"make it run {reach}")
        return await take_change(sandbox, task.workspace, baseline)


async def _look_at_history(bundle: TaskBundle, runtime: Runtime, finding: ValidationResult) -> None:
    """A repository that holds more than its one commit may hold the answer."""
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "validating"})) as sandbox:
        script = (
            "command -v git > /dev/null && [ -d .git ] || exit 0; "
            "git rev-list --all --reflog | sed 1d; git stash list; "
            "git fsck --unreachable --no-reflogs --no-progress 2>&1"
        )
        found = await sandbox.exec(("sh", "-c", script), timeout_s=120, merge_stderr=True)
    if found.exit_code or found.stdout.head.strip():
        finding.refuse(
            Reason.HISTORY, "the repository holds more than one commit; begin it anew in environment/Dockerfile"
        )


async def _present(bundle: TaskBundle, gold: Change, runtime: Runtime, finding: ValidationResult) -> dict[str, bytes]:
    """What the image holds at the gold's paths. What the gold solution brings must stand nowhere in it yet."""
    async with runtime.scope(sandbox_spec(bundle.task, labels={"purpose": "validating"})) as sandbox:
        present: dict[str, bytes] = {}
        for file in gold.files:
            with suppress(PathError):
                present[file.path] = await sandbox.read_file(f"{bundle.task.workspace}/{file.path}")
        left = await find_solution_leaks(sandbox, await asyncio.to_thread(solution_fingerprint, gold, present))
        if left is None:
            finding.notes.append("the image has no Python, so it was not searched for what is left of the solution")
        for residue in left or ():
            finding.refuse(Reason.RESIDUE, f"{residue.path} holds {residue.what}")
    return present

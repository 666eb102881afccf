"""A verifier in a sandbox of its own: it gets the artifacts that the task names and nothing else of the agent's."""

import asyncio
import time
from dataclasses import replace
from functools import partial

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import Separate
from farm.grading.changes.capture import is_residue
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.changes.summary import ChangeSummary, drop_unchanged, read_old, summarize_change
from farm.grading.collect_work import list_artifact, run_collect_hooks, take_artifacts
from farm.grading.diff.patch import render_patch
from farm.grading.errors import VerifierError
from farm.grading.reports.harbor import COMMAND, clear_logs, put_tests
from farm.grading.request import GradingRequest
from farm.grading.verdict import Verdict, decide_reward_file, zero_verdict
from farm.grading.verifier_run import (
    CommandTimes,
    Placement,
    TimeoutRepeat,
    VerifierCommand,
    judge_run,
    reward_of_run,
    run_verifier,
)
from farm.tasks.images import sandbox_spec, verifier_spec
from sandboxes.interface import Sandbox


async def grade_artifacts(request: GradingRequest, artifacts: Change, separate: Separate) -> Verdict:
    """Let the task's own verifier judge ``artifacts``.

    Raises what ``grade`` raises: VerifierError if the verifier does not work without any artifact, and if there are
    none before anybody makes some.
    """
    started = time.monotonic()
    summary = await _summarize(request, artifacts, separate)
    repeat = TimeoutRepeat(allowed=request.repeats_timeout)
    try:
        verdict = repeat.mark(await repeat.judge(partial(_judge_artifacts, request, artifacts, separate)))
    except VerifierError:
        if (await take_pristine_artifacts(request, separate)).empty:
            raise
        verdict = zero_verdict("the artifacts that the task came with are gone, and the verifier needs them")
    facts = {"artifact_files": float(len(artifacts.files)), "graded_separate": 1.0}
    return replace(
        verdict,
        components={**verdict.components, **facts, **summary.components},
        patch=summary.patch,
        screened=summary.screened,
        total_s=time.monotonic() - started,
    )


async def _summarize(request: GradingRequest, artifacts: Change, separate: Separate) -> ChangeSummary:
    """Return how artifacts in the workspace differ from the files of the task's image; others are shown as they are.

    There are components only if the task names artifacts in its workspace, and of these alone.
    """
    task = request.bundle.task
    home = f"{task.workspace}/"
    named = [one for one in separate.artifacts if _overlap(f"{one.path}/", home)]
    inside = [file for file in artifacts.files if named and f"/{file.path}".startswith(home)]
    others = Change(tuple(file for file in artifacts.files if not (named and f"/{file.path}".startswith(home))))
    outside = await asyncio.to_thread(render_patch, others, lambda path: None)
    if not named:
        return ChangeSummary(outside, {})
    spec = sandbox_spec(task, labels={"task": task.id, "purpose": "looking"})
    async with request.runtime.scope(spec, boot_timeout_s=request.boot_timeout_s) as pristine:
        listed = [await list_artifact(pristine, artifact) for artifact in named]
        entries = {path.lstrip("/"): entry for files in listed for path, entry in files.items()}
        gone = entries.keys() - {file.path for file in artifacts.files}
        files = [*inside, *(FileChange(path, ChangeKind.DELETE) for path in gone if f"/{path}".startswith(home))]
        change = Change(
            tuple(sorted((file for file in files if not is_residue(file.path)), key=lambda file: file.path))
        )
        old = await read_old(pristine, "", change, entries)
    summary = await summarize_change(drop_unchanged(change, old), old.get)
    return ChangeSummary(summary.patch + outside, summary.components)


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


async def _judge_artifacts(request: GradingRequest, artifacts: Change, separate: Separate) -> Verdict:
    started, times = time.monotonic(), CommandTimes()
    verifier = request.verifier
    placement = Placement(
        is_pristine=artifacts.empty,
        is_fresh=True,
        tests_fault="the tests cannot be put into the verifier's sandbox",
        work_fault="the artifacts cannot be put into the verifier's sandbox",
    )
    spec = verifier_spec(request.bundle.task, separate)
    async with request.runtime.scope(spec, boot_timeout_s=request.boot_timeout_s) as sandbox:
        boot_s = time.monotonic() - started

        async def run() -> Verdict:
            await _put(sandbox, artifacts)
            if not separate.brings_tests:
                await put_tests(sandbox, request.bundle.tests)
            await clear_logs(sandbox)
            command = VerifierCommand(verifier.command or COMMAND, dict(verifier.env), request.limit_s)
            ended = await run_verifier(sandbox, command, request, times)
            verdict = decide_reward_file(await reward_of_run(sandbox, ended), pristine=artifacts.empty)
            return replace(verdict, output=ended.output)

        verdict = await judge_run(run, placement)
    total_s = time.monotonic() - started
    return replace(verdict, boot_s=boot_s, queue_s=times.queue_s, command_s=times.command_s, total_s=total_s)


async def take_pristine_artifacts(request: GradingRequest, separate: Separate) -> Change:
    """Return the artifacts of an untouched sandbox of the task."""
    task = request.bundle.task
    spec = sandbox_spec(task, labels={"task": task.id, "purpose": "grading"})
    async with request.runtime.scope(spec, boot_timeout_s=request.boot_timeout_s) as untouched:
        await run_collect_hooks(untouched, task.workspace, separate)
        return (await take_artifacts(untouched, separate)).files


async def _put(sandbox: Sandbox, artifacts: Change) -> None:
    async def put(file: FileChange) -> None:
        await sandbox.write_file(f"/{file.path}", file.content, executable=file.executable, parents=True)

    await map_concurrently(artifacts.files, put)

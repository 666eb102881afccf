"""A verifier in a sandbox of its own: nothing of the agent's reaches it but the artifacts that the task names."""

import asyncio
import time
from dataclasses import replace

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.path_patterns import TarPatterns
from farm.core.task import Artifact, Separate
from farm.grading.changes.capture import MAX_BYTES, MAX_FILES, is_executable, is_residue
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.changes.summary import ChangeSummary, drop_unchanged, read_old, summarize_change
from farm.grading.diff.patch import render_patch
from farm.grading.errors import ChangeTooLarge, ReportError, VerifierError, raise_if_host_fault
from farm.grading.reports.harbor import COMMAND, LOGS_DIR, TESTS_DIR, clear_logs, put_tests, read_reward
from farm.grading.verdict import Verdict, decide_reward_file, zero_verdict
from farm.tasks.bundle import TaskBundle
from farm.tasks.images import sandbox_spec, verifier_spec
from sandboxes.errors import LossCause, PathError, SandboxGone
from sandboxes.interface import MIB, FileEntry, FileKind, Runtime, Sandbox
from sandboxes.toolserver.replay import repeatable

SHELL = ("/.farm/bin/bash", "-c")
ALWAYS = "/logs/artifacts"
"""Harbor takes what lies there without being told to."""
OUTPUT_BYTES = 16 * 1024


async def grade_artifacts(
    bundle: TaskBundle,
    artifacts: Change,
    runtime: Runtime,
    *,
    verify_s: float | None,
    boot_timeout_s: float = 60.0,
    turns: asyncio.Semaphore | None = None,
) -> Verdict:
    """Let the task's own verifier look at ``artifacts``, as ``take_artifacts`` has them.

    The other arguments, and what is raised, as for ``grade``: VerifierError where the verifier does not work even
    without any, and there are none until somebody makes some.
    """
    separate = bundle.task.verifier.separate
    if separate is None:
        raise VerifierError("the task has no verifier of its own")
    started = time.monotonic()
    limit_s = bundle.task.verifier.limit_s(verify_s)
    seen = await _look(bundle, separate, artifacts, runtime, boot_timeout_s)
    try:
        verdict = await _judge(
            bundle, separate, artifacts, runtime, limit_s, boot_timeout_s, turns or asyncio.Semaphore()
        )
    except VerifierError:
        if not await _holds_artifacts(bundle, separate, runtime, boot_timeout_s):
            raise
        verdict = zero_verdict("the artifacts that the task came with are gone, and the verifier needs them")
    facts = {"artifact_files": float(len(artifacts.files)), "graded_separate": 1.0}
    return replace(
        verdict,
        components={**verdict.components, **facts, **seen.components},
        patch=seen.patch,
        screened=seen.screened,
        total_s=time.monotonic() - started,
    )


async def collect(sandbox: Sandbox, workspace: str, separate: Separate, *, step: int = 0) -> None:
    """Kill every process and run the hooks of the task, or of its ``step``, each within its own limit.

    Whoever does so again, since the process that did it first has died, runs none a second time. What they do with
    programs that the agent could have changed is data as the rest.
    """
    with repeatable(f"collect, step {step}"):
        await sandbox.kill_all()
        for hook in separate.collect:
            await sandbox.exec((*SHELL, hook.command), cwd=workspace, timeout_s=hook.timeout_s, merge_stderr=True)
            await sandbox.kill_all()


async def take_artifacts(sandbox: Sandbox, separate: Separate) -> Change:
    """The regular files of the artifacts that are there, by their path below the root.

    Raises ChangeTooLarge, and PathError for what the agent made unreadable.
    """
    found: dict[str, FileEntry] = {}
    for artifact in (*separate.artifacts, Artifact(ALWAYS)):
        found |= await _list(sandbox, artifact)
        size = sum(entry.size for entry in found.values())
        if len(found) > MAX_FILES or size > MAX_BYTES:
            raise ChangeTooLarge(
                f"the artifacts hold {len(found)} files and {size / MIB:.0f} MiB; "
                f"at most {MAX_FILES} and {MAX_BYTES // MIB} MiB are judged"
            )

    async def read(path: str) -> FileChange:
        content = await sandbox.read_file(path, limit=MAX_BYTES + 1)
        return FileChange(path.lstrip("/"), ChangeKind.WRITE, content, is_executable(found[path]))

    files = await map_concurrently(sorted(found), read)
    if sum(len(file.content) for file in files) > MAX_BYTES:  # one grew, or lied about its size
        raise ChangeTooLarge(f"the artifacts hold more than {MAX_BYTES // MIB} MiB")
    return Change(tuple(files))


async def _list(sandbox: Sandbox, artifact: Artifact) -> dict[str, FileEntry]:
    """Regular files by absolute path; links and all else are left where they are, and so is what is the verifier's."""
    try:
        entry = await sandbox.stat(artifact.path)
    except PathError:
        return {}
    if entry.kind is FileKind.FILE:
        return {artifact.path: entry}
    if entry.kind is not FileKind.DIRECTORY:
        return {}
    entries = [entry for entry in await sandbox.walk(artifact.path) if entry.kind is FileKind.FILE]
    if artifact.exclude:
        excluded = TarPatterns(artifact.exclude)
        entries = await asyncio.to_thread(lambda: [entry for entry in entries if not excluded.match(entry.path)])
    files = {f"{artifact.path}/{entry.path}": entry for entry in entries}
    return {path: entry for path, entry in files.items() if not path.startswith((f"{TESTS_DIR}/", f"{LOGS_DIR}/"))}


async def _look(
    bundle: TaskBundle, separate: Separate, artifacts: Change, runtime: Runtime, boot_timeout_s: float
) -> ChangeSummary:
    """How the artifacts in the workspace differ from what the task's image holds there; others are shown as they are.

    Components are there only where the task names artifacts in its workspace, and of these alone.
    """
    task = bundle.task
    home = f"{task.workspace}/"
    named = [one for one in separate.artifacts if _overlap(f"{one.path}/", home)]
    inside = [file for file in artifacts.files if named and f"/{file.path}".startswith(home)]
    others = Change(tuple(file for file in artifacts.files if not (named and f"/{file.path}".startswith(home))))
    outside = await asyncio.to_thread(render_patch, others, lambda path: None)
    if not named:
        return ChangeSummary(outside, {})
    spec = sandbox_spec(task, labels={"task": task.id, "purpose": "looking"})
    async with runtime.scope(spec, boot_timeout_s=boot_timeout_s) as pristine:
        listed = [await _list(pristine, artifact) for artifact in named]
        entries = {path.lstrip("/"): entry for files in listed for path, entry in files.items()}
        gone = entries.keys() - {file.path for file in artifacts.files}
        files = [*inside, *(FileChange(path, ChangeKind.DELETE) for path in gone if f"/{path}".startswith(home))]
        change = Change(
            tuple(sorted((file for file in files if not is_residue(file.path)), key=lambda file: file.path))
        )
        old = await read_old(pristine, "", change, entries)
    seen = await summarize_change(drop_unchanged(change, old), old.get)
    return ChangeSummary(seen.patch + outside, seen.components)


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


async def _judge(
    bundle: TaskBundle,
    separate: Separate,
    artifacts: Change,
    runtime: Runtime,
    limit_s: float,
    boot_timeout_s: float,
    turns: asyncio.Semaphore,
) -> Verdict:
    begun = time.monotonic()
    async with runtime.scope(verifier_spec(bundle.task, separate), boot_timeout_s=boot_timeout_s) as sandbox:
        booted = time.monotonic()
        try:
            await _put(sandbox, artifacts)
            if not separate.brings_tests:
                await put_tests(sandbox, bundle.tests)
            await clear_logs(sandbox)
            async with turns:
                asked = time.monotonic()
                result = await sandbox.exec(
                    (*SHELL, bundle.task.verifier.command or COMMAND),
                    env=dict(bundle.task.verifier.env),
                    timeout_s=limit_s,
                    output_limit=OUTPUT_BYTES,
                    merge_stderr=True,
                )
                await sandbox.kill_all()
            late = ReportError(f"the test command did not end within {limit_s:g} s", timed_out=True)
            reward = late if result.timed_out else await read_reward(sandbox, result)
        except PathError as error:
            raise_if_host_fault(error, fresh=True)
            if artifacts.empty:
                raise VerifierError(f"the tests cannot be put into the verifier's sandbox: {error}") from error
            return zero_verdict(f"the artifacts cannot be put into the verifier's sandbox: {error}")
        except SandboxGone as error:
            if artifacts.empty or error.by is LossCause.OUTSIDE:
                raise
            return replace(zero_verdict(f"the tests lost their sandbox: {error}"), unreported=True)
    output = (result.stdout.tail or result.stdout.head).decode(errors="replace")
    verdict = decide_reward_file(reward, pristine=artifacts.empty)
    return replace(
        verdict,
        output=output,
        boot_s=booted - begun,
        queue_s=asked - booted,
        command_s=result.duration_s,
    )


async def _holds_artifacts(bundle: TaskBundle, separate: Separate, runtime: Runtime, boot_timeout_s: float) -> bool:
    """Whether a sandbox of the task has some from the beginning."""
    spec = sandbox_spec(bundle.task, labels={"task": bundle.task.id, "purpose": "grading"})
    async with runtime.scope(spec, boot_timeout_s=boot_timeout_s) as untouched:
        await collect(untouched, bundle.task.workspace, separate)
        return not (await take_artifacts(untouched, separate)).empty


async def _put(sandbox: Sandbox, artifacts: Change) -> None:
    async def put(file: FileChange) -> None:
        await sandbox.write_file(f"/{file.path}", file.content, executable=file.executable, parents=True)

    await map_concurrently(artifacts.files, put)

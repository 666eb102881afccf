"""Read the work of an episode from its sandbox: the change of the workspace, or the artifacts that the task names."""

import asyncio

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.path_patterns import TarPatterns
from farm.core.task import Artifact, Separate, Task
from farm.grading.changes.capture import MAX_BYTES, MAX_FILES, WorkspaceBaseline, is_executable, take_change
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.errors import ChangeTooLarge
from farm.grading.reports.harbor import LOGS_DIR, TESTS_DIR
from farm.grading.verifier_run import SHELL
from farm.grading.work import Artifacts
from sandboxes.errors import PathError
from sandboxes.interface import MIB, FileEntry, FileKind, Sandbox
from sandboxes.toolserver.replay import repeatable

ALWAYS = "/logs/artifacts"
"""Harbor takes the files of this directory even if the task does not name it."""


async def run_collect_hooks(sandbox: Sandbox, workspace: str, separate: Separate, *, step: int = 0) -> None:
    """Kill every process and run the hooks of the task, or of its ``step``, each within its own limit.

    A process that repeats this after the first one died runs no hook a second time. What the hooks do with programs
    that the agent could have changed is data like the rest.
    """
    with repeatable(f"collect, step {step}"):
        await sandbox.kill_all()
        for hook in separate.collect:
            await sandbox.exec((*SHELL, hook.command), cwd=workspace, timeout_s=hook.timeout_s, merge_stderr=True)
            await sandbox.kill_all()


async def take_artifacts(sandbox: Sandbox, separate: Separate) -> Artifacts:
    """Return the regular files of the artifacts that are there.

    Raises ChangeTooLarge, and PathError for what the agent made unreadable.
    """
    found: dict[str, FileEntry] = {}
    for artifact in (*separate.artifacts, Artifact(ALWAYS)):
        found |= await list_artifact(sandbox, artifact)
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
    if sum(len(file.content) for file in files) > MAX_BYTES:  # one grew, or its size was false
        raise ChangeTooLarge(f"the artifacts hold more than {MAX_BYTES // MIB} MiB")
    return Artifacts(Change(tuple(files)))


async def list_artifact(sandbox: Sandbox, artifact: Artifact) -> dict[str, FileEntry]:
    """Return regular files by absolute path, without links and all else, and without the verifier's own files."""
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


async def collect_work(
    sandbox: Sandbox, task: Task, baseline: WorkspaceBaseline | None, *, limit_s: float, step: int = 0
) -> Change | Artifacts:
    """Return the artifacts that ``task`` names for its own verifier, or else the change of the workspace.

    ``step`` is the number of the step that ``task`` stands for. ``baseline``: the workspace before the episode;
    artifacts need none. Raises ChangeTooLarge and PathError for faults of the agent, and TimeoutError if reading takes
    more than ``limit_s`` twice; once, the machine may have stalled. Hooks of the task have limits of their own.
    """
    separate = task.verifier.separate
    if separate is not None:
        await run_collect_hooks(sandbox, task.workspace, separate, step=step)

    async def read() -> Change | Artifacts:
        async with asyncio.timeout(limit_s):
            if separate is not None:
                return await take_artifacts(sandbox, separate)
            assert baseline is not None
            return await take_change(sandbox, task.workspace, baseline)

    try:
        return await read()
    except TimeoutError:
        return await read()

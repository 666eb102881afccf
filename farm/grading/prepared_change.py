"""A change as it travels into the grading sandbox, and the facts about it that a verdict carries."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import Task
from farm.grading.changes.capture import MAX_BYTES, WorkspaceBaseline, is_executable, read_content, take_baseline
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.changes.protected_paths import ProtectedPaths, split_change
from farm.grading.changes.summary import ChangeSummary, drop_unchanged, read_old, summarize_change
from farm.grading.errors import ChangeRefused, raise_if_host_fault
from farm.grading.sandboxes import GradingSandboxes
from farm.grading.tripwire.changed_lines import ChangedLines, touched_files
from farm.grading.verdict import Verdict
from sandboxes.errors import PathError
from sandboxes.interface import FileEntry, FileKind

_KINDS = {ChangeKind.WRITE: FileKind.FILE, ChangeKind.SYMLINK: FileKind.SYMLINK}


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change as it travels, and the workspace that it travels to.

    ``excluded``: protected paths that do not travel. ``workspace_files``: what the workspace of the tests holds, by
    path. ``is_pristine``: nothing of the policy is in it. ``files``: how many files the change really changes.
    ``summary`` is computed while the tests run. ``changed_lines``: of the files that the change writes.
    """

    applied: Change
    excluded: tuple[str, ...]
    workspace_files: Mapping[str, FileKind]
    is_pristine: bool
    files: int
    summary: asyncio.Task[ChangeSummary]
    changed_lines: Mapping[str, ChangedLines]

    async def add_facts(self, verdict: Verdict) -> Verdict:
        """Return ``verdict`` with what is known of the change."""
        summary = await self.summary
        facts = {"changed_files": float(self.files), "protected_paths_touched": float(len(self.excluded))}
        return replace(
            verdict,
            components={**verdict.components, **facts, **summary.components},
            protected_paths=self.excluded,
            patch=summary.patch,
            screened=(*verdict.screened, *summary.screened),
        )


class ChangePreparer:
    """Prepare changes of a task's workspace. ``baseline`` spares a walk if it is of the sandboxes' image."""

    def __init__(self, task: Task, sandboxes: GradingSandboxes, baseline: WorkspaceBaseline | None) -> None:
        self._task = task
        self._sandboxes = sandboxes
        self._baseline = baseline
        self._summary: asyncio.Task[ChangeSummary] | None = None

    async def close(self) -> None:
        """End the summary if no verdict waits for it."""
        if self._summary is not None and not self._summary.done():
            self._summary.cancel()
            await asyncio.wait({self._summary})

    async def prepare(self, change: Change, *, injected: Sequence[str]) -> PreparedChange:
        """Return what travels of ``change``; ``injected`` are the paths of grading's tests. Raises ChangeRefused."""
        pristine = await self._pristine_baseline()
        kinds = {path: entry.kind for path, entry in pristine.entries.items()}
        protection = await asyncio.to_thread(ProtectedPaths, self._task.verifier, injected, kinds)
        if self._sandboxes.holds_agent_state:
            change = await self._add_unlisted(change, protection, pristine)
        old = await read_old(self._sandboxes.pristine, self._task.workspace, change, pristine.entries)
        real = drop_unchanged(change, old)
        contents = {path: file.content for path, file in old.items()}
        travels, excluded = await asyncio.to_thread(split_change, real, protection, contents.get)
        summary = self._summary = asyncio.create_task(summarize_change(real, old.get))
        changed_lines = await asyncio.to_thread(touched_files, travels, old.get)
        if not self._sandboxes.holds_agent_state:
            return PreparedChange(travels, excluded, kinds, travels.empty, len(real.files), summary, changed_lines)
        restored = await self._restore(excluded, pristine)
        changed = {file.path: _KINDS.get(file.kind) for file in change.files}
        there = {path: kind for path, kind in (kinds | changed).items() if kind is not None}
        return PreparedChange(restored, excluded, there, False, len(real.files), summary, changed_lines)

    async def _pristine_baseline(self) -> WorkspaceBaseline:
        pristine = self._sandboxes.pristine
        if self._baseline is not None and self._baseline.image_digest == pristine.image_digest:
            return self._baseline
        return await take_baseline(pristine, self._task.workspace)

    async def _add_unlisted(self, change: Change, protection: ProtectedPaths, pristine: WorkspaceBaseline) -> Change:
        """Return ``change`` with protected files that differ though their size and time were kept.

        Other files need no such check, because the tests run in the agent's own state.
        """
        listed = {file.path for file in change.files}
        unlisted = [entry for path, entry in pristine.entries.items() if path not in listed]
        guarded = await asyncio.to_thread(
            lambda: [entry for entry in unlisted if entry.kind is FileKind.FILE and protection.is_protected(entry.path)]
        )

        async def read(entry: FileEntry) -> FileChange | None:
            old = await read_content(self._sandboxes.pristine, self._task.workspace, entry.path, entry.kind)
            try:
                new = await read_content(self._sandboxes.tests, self._task.workspace, entry.path, entry.kind)
            except PathError as error:
                raise_if_host_fault(error)
                raise ChangeRefused(f"a protected file was made unreadable: {error}") from None
            return None if new == old else FileChange(entry.path, ChangeKind.WRITE, new, is_executable(entry))

        found = [file for file in await map_concurrently(guarded, read) if file is not None]
        return Change(tuple(sorted((*change.files, *found), key=lambda file: file.path))) if found else change

    async def _restore(self, paths: Sequence[str], pristine: WorkspaceBaseline) -> Change:
        """Return the change that restores protected paths in the agent's own sandbox."""
        room = MAX_BYTES

        async def restore(path: str) -> FileChange:
            nonlocal room
            entry = pristine.entries.get(path)
            if entry is None:
                return FileChange(path, ChangeKind.DELETE)
            room -= entry.size
            if room < 0:
                raise ChangeRefused(f"protected files of more than {MAX_BYTES >> 20} MiB were changed")
            content = await read_content(self._sandboxes.pristine, self._task.workspace, path, entry.kind)
            if entry.kind is FileKind.SYMLINK:
                return FileChange(path, ChangeKind.SYMLINK, content)
            return FileChange(path, ChangeKind.WRITE, content, is_executable(entry))

        return Change(tuple(await map_concurrently(paths, restore)))

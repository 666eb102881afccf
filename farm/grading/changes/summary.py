"""Summary of a change, made while its tests run: a patch for people, and raw components."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farm.core.change import Change, ChangeKind, FileChange
from farm.grading.changes.capture import MAX_BYTES, is_executable, read_content
from farm.grading.changes.concurrency import map_concurrently
from farm.grading.diff.patch import MAX_SHOWN_BYTES, render
from farm.grading.diff.style import is_python, measure_style
from farm.grading.diff.suspicious_lines import find_suspicious_lines
from sandboxes.interface import FileEntry, FileKind, Sandbox

_log = logging.getLogger(__name__)

NOT_READ = b"\0"
"""Placeholder for pristine content that is too large to be shown and differs in size from the new content."""


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """A change as a patch and as components. ``screened``: lines that look like forged test results."""

    patch: str
    components: Mapping[str, float]
    screened: tuple[str, ...] = ()


async def read_old(
    pristine: Sandbox, root: str, change: Change, entries: Mapping[str, FileEntry]
) -> dict[str, FileChange]:
    """Return the pristine files at the changed paths from a pristine sandbox.

    ``entries`` is a walk of the directory ``root``. Raises PathError if a file cannot be read.
    """
    bytes_left = MAX_BYTES

    async def read(file: FileChange) -> FileChange | None:
        nonlocal bytes_left
        entry = entries.get(file.path)
        if entry is None:
            return None
        kind = ChangeKind.SYMLINK if entry.kind is FileKind.SYMLINK else ChangeKind.WRITE
        content = NOT_READ
        if entry.size <= bytes_left and (entry.size <= MAX_SHOWN_BYTES or entry.size == len(file.content)):
            bytes_left -= entry.size
            content = await read_content(pristine, root, file.path, entry.kind)
        return FileChange(file.path, kind, content, is_executable(entry) and kind is ChangeKind.WRITE)

    return {file.path: file for file in await map_concurrently(change.files, read) if file is not None}


def drop_unchanged(change: Change, old: Mapping[str, FileChange]) -> Change:
    """Return the change without files that equal ``old``, the pristine files."""
    return Change(tuple(file for file in change.files if _differs(file, old.get(file.path))))


def _differs(file: FileChange, old: FileChange | None) -> bool:
    if file.kind is ChangeKind.DELETE:
        return old is not None
    return old is None or (old.kind, old.content, old.executable) != (file.kind, file.content, file.executable)


async def summarize_change(change: Change, read_old: Callable[[str], FileChange | None]) -> ChangeSummary:
    """Summarize a change. ``read_old`` as in ``render``.

    If the summary fails, return the component ``unseen``: the policy's text must not cost the verdict.
    """
    try:
        return await _describe(change, read_old)
    except Exception:  # the reason is in the docstring; the log has the traceback
        _log.exception("the summary of a change of %d files failed; the verdict has none", len(change.files))
        return ChangeSummary("", {"unseen": 1.0})


async def _describe(change: Change, read_old: Callable[[str], FileChange | None]) -> ChangeSummary:
    rendered = await asyncio.to_thread(render, change, read_old, is_python)
    size = {
        "diff_added": float(sum(file.added for file in rendered.files)),
        "diff_removed": float(sum(file.removed for file in rendered.files)),
        "diff_bytes": float(change.size_bytes),
    }
    screened = await asyncio.to_thread(find_suspicious_lines, rendered.files)
    return ChangeSummary(rendered.patch, {**size, **await measure_style(rendered.files)}, screened)

"""What a change looks like, while its tests run: as a patch for people, and in raw components."""

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

UNREAD = b"\0"
"""Stands for pristine content that is not worth reading: too big to be shown, of another size than the new."""


@dataclass(frozen=True, slots=True)
class ChangeSummary:
    """``screened``: lines of it that look like results made up."""

    patch: str
    components: Mapping[str, float]
    screened: tuple[str, ...] = ()


async def read_old(
    pristine: Sandbox, root: str, change: Change, entries: Mapping[str, FileEntry]
) -> dict[str, FileChange]:
    """What an untouched sandbox holds at the changed paths, as ``entries`` of a walk below ``root`` say. Raises
    PathError."""
    room = MAX_BYTES

    async def read(file: FileChange) -> FileChange | None:
        nonlocal room
        entry = entries.get(file.path)
        if entry is None:
            return None
        kind = ChangeKind.SYMLINK if entry.kind is FileKind.SYMLINK else ChangeKind.WRITE
        content = UNREAD
        if entry.size <= room and (entry.size <= MAX_SHOWN_BYTES or entry.size == len(file.content)):
            room -= entry.size
            content = await read_content(pristine, root, file.path, entry.kind)
        return FileChange(file.path, kind, content, is_executable(entry) and kind is ChangeKind.WRITE)

    return {file.path: file for file in await map_concurrently(change.files, read) if file is not None}


def drop_unchanged(change: Change, old: Mapping[str, FileChange]) -> Change:
    """What differs from ``old`` in what travels."""
    return Change(tuple(file for file in change.files if _is_real(file, old.get(file.path))))


def _is_real(file: FileChange, old: FileChange | None) -> bool:
    if file.kind is ChangeKind.DELETE:
        return old is not None
    return old is None or (old.kind, old.content, old.executable) != (file.kind, file.content, file.executable)


async def summarize_change(change: Change, read_old: Callable[[str], FileChange | None]) -> ChangeSummary:
    """Describe ``change``. ``read_old`` as ``render`` takes it.

    A description that fails leaves the component ``unseen``: what a policy wrote must not cost its verdict.
    """
    try:
        return await _describe(change, read_old)
    except Exception:  # the reason is in the docstring; the log has the traceback
        _log.exception("a change of %d files cannot be described", len(change.files))
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

"""Apply a patch to files of a sandbox: all of it or nothing."""

import asyncio
import errno
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sandboxes.cancellation import shielded
from sandboxes.errors import PathError
from sandboxes.interface import MIB, Sandbox
from sandboxes.tools.actions.encodings import UTF_8, decoded, encoded
from sandboxes.tools.actions.files import MOST_BYTES, FileActions, text_of
from sandboxes.tools.actions.text_edits import EditRefused
from sandboxes.tools.actions.v4a_patch import (
    Section,
    V4aAdd,
    V4aDelete,
    V4aError,
    V4aUpdate,
    apply_patch,
    parse_patch,
)
from sandboxes.tools.actions.write_deadline import WriteDeadline
from sandboxes.tools.parse_call import MalformedCall
from sandboxes.tools.rendering import shown_name
from sandboxes.tools.tool import ToolErrorKind, ToolResult, refused

_MAX_TOTAL_BYTES = 32 * MIB
_HELPER_TIMEOUT_S = 10.0
_REAL_PATHS = 'for path; do /.farm/bin/busybox readlink -f -- "$path"; printf "\\0"; done'


class PatchActions:
    """Applies patches; shares the write lock of ``files``."""

    def __init__(self, files: FileActions) -> None:
        self._files = files

    async def apply(self, sandbox: Sandbox, patch: str, *, cwd: str, timeout_s: float) -> ToolResult:
        """Apply a patch in the V4A format. Its relative paths begin at ``cwd``.

        Raises MalformedCall if the text is not a patch.
        """
        cwd = posixpath.normpath(cwd)
        writing = WriteDeadline(timeout_s)
        try:
            async with writing:
                # In a thread: a policy can make parsing slow, and the event loop serves other episodes.
                sections = [_normalize_section(section, cwd) for section in await asyncio.to_thread(parse_patch, patch)]
                return await self._files.in_turn(sandbox, lambda: _apply(sandbox, sections, cwd, writing))
        except V4aError as error:
            raise MalformedCall(ToolErrorKind.BAD_ARGUMENTS, f"{error}; nothing was changed") from None
        except EditRefused as refusal:
            message = f"{refusal}\n[nothing was changed]" if "\n" in str(refusal) else f"{refusal}; nothing was changed"
            return refused(message)
        except TimeoutError:
            return writing.timed_out()


def _normalize_section(section: Section, cwd: str) -> Section:
    """Normalize the paths of a section: relative to ``cwd`` if they are below it."""
    match section:
        case V4aUpdate(path, str() as move_to):
            return replace(section, path=_normalize_path(path, cwd), move_to=_normalize_path(move_to, cwd))
        case V4aAdd(path) | V4aDelete(path) | V4aUpdate(path):
            return replace(section, path=_normalize_path(path, cwd))


def _normalize_path(path: str, cwd: str) -> str:
    full = posixpath.normpath(posixpath.join(cwd, path))
    return full.removeprefix(cwd.rstrip("/") + "/")


async def _apply(sandbox: Sandbox, sections: Sequence[Section], cwd: str, writing: WriteDeadline) -> ToolResult:
    before = await _read(sandbox, sections, cwd)
    if len(before) > 1:
        await _check_distinct(sandbox, list(before), cwd)
    decoded_files = {path: None if data is None else decoded(data) for path, data in before.items()}
    texts = {path: None if text is None else text[0] for path, text in decoded_files.items()}
    for section in sections:
        data = before[section.path]
        if isinstance(section, V4aUpdate) and data is not None:
            _check_text(section.path, data)
    after = await asyncio.to_thread(apply_patch, sections, texts)
    modes = {
        section.move_to: section.path for section in sections if isinstance(section, V4aUpdate) and section.move_to
    }
    written = {
        path: None if text is None else _encoded(path, text, decoded_files[modes.get(path, path)])
        for path, text in after.items()
    }
    writing.begin()
    await shielded(_write(sandbox, cwd, before, written, modes))
    return ToolResult("\n".join(["Success. Updated the following files:", *_summary(sections)]))


async def _check_distinct(sandbox: Sandbox, paths: Sequence[str], cwd: str) -> None:
    """Check that no two paths are one file by links, because each file is patched separately.

    Raises EditRefused if two paths are the same file.
    """
    argv = ("/.farm/bin/bash", "-c", _REAL_PATHS, "readlink", *(posixpath.join(cwd, path) for path in paths))
    decoded_files = await sandbox.exec(argv, timeout_s=_HELPER_TIMEOUT_S, output_limit=MIB)
    real = decoded_files.stdout.head.split(b"\0")[:-1]
    if decoded_files.exit_code != 0 or len(real) != len(paths):
        return  # cannot be checked: thousands of paths exceed the output limit
    names: dict[bytes, str] = {}
    for path, name in zip(paths, real, strict=True):
        if name and (other := names.setdefault(name, path)) != path:
            raise EditRefused(f"{shown_name(other)} and {shown_name(path)} are one file: patch it by one of them")


def _encoded(path: str, text: str, before: tuple[str, str] | None) -> bytes:
    try:
        return encoded(text, UTF_8 if before is None else before[1])
    except EditRefused as refusal:
        raise EditRefused(f"{shown_name(path)}: {refusal}") from None


def _check_text(path: str, data: bytes) -> None:
    try:
        text_of(data)
    except EditRefused as refusal:
        raise EditRefused(f"{shown_name(path)}: {refusal}") from None


async def _read(sandbox: Sandbox, sections: Sequence[Section], cwd: str) -> dict[str, bytes | None]:
    """Read the current content of each path that a patch names; None if there is no file."""
    before: dict[str, bytes | None] = {}
    total = 0
    for section in sections:
        for path in (section.path, section.move_to if isinstance(section, V4aUpdate) else None):
            if path is not None and path not in before:
                before[path] = data = await _content(sandbox, path, cwd)
                total += len(data or b"")
            if total > _MAX_TOTAL_BYTES:
                raise EditRefused(
                    f"the files that it names have more than {_MAX_TOTAL_BYTES // MIB} MiB: patch fewer at once"
                )
    return before


async def _content(sandbox: Sandbox, path: str, cwd: str) -> bytes | None:
    try:
        data = await sandbox.read_file(posixpath.join(cwd, path), limit=MOST_BYTES + 1)
    except PathError as fault:
        if fault.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise EditRefused(shown_name(str(fault))) from None
    if len(data) > MOST_BYTES:
        raise EditRefused(f"{shown_name(path)}: has more than {MOST_BYTES // MIB} MiB; use the shell")
    return data


async def _write(
    sandbox: Sandbox,
    cwd: str,
    before: Mapping[str, bytes | None],
    after: Mapping[str, bytes | None],
    moved: Mapping[str, str],
) -> None:
    """Write the new files, then remove the deleted ones; roll back if one of these operations fails.

    ``moved`` maps a new path to the old path, whose mode it inherits. Raises EditRefused after a rollback.
    """
    done: list[str] = []
    created = await _missing_directories(sandbox, cwd, [path for path in after if before[path] is None])
    try:
        for path, data in sorted(after.items(), key=lambda change: change[1] is None):
            full = posixpath.join(cwd, path)
            if data is None:
                await sandbox.remove_path(full)
            else:
                executable = await _executable(sandbox, posixpath.join(cwd, moved[path])) if path in moved else None
                await sandbox.write_file(full, data, executable=executable, parents=True)
            done.append(path)
    except PathError as fault:
        for path in reversed(done):
            old, full = before[path], posixpath.join(cwd, path)
            await (sandbox.remove_path(full) if old is None else sandbox.write_file(full, old))
        if created:
            await sandbox.exec(("/.farm/bin/busybox", "rmdir", "--", *created), timeout_s=_HELPER_TIMEOUT_S)
        raise EditRefused(shown_name(str(fault))) from None


async def _missing_directories(sandbox: Sandbox, cwd: str, paths: Sequence[str]) -> list[str]:
    """Return the missing parent directories of ``paths``, the deepest first."""
    there, missing = {"/", cwd}, set[str]()
    for path in paths:
        directory = posixpath.dirname(posixpath.join(cwd, path))
        while directory not in there and directory not in missing:
            try:
                await sandbox.stat(directory)
                there.add(directory)
            except PathError:
                missing.add(directory)
                directory = posixpath.dirname(directory)
    return sorted(missing, key=len, reverse=True)


async def _executable(sandbox: Sandbox, path: str) -> bool | None:
    try:
        return bool((await sandbox.stat(path)).mode & 0o100)
    except PathError:
        return None


def _summary(sections: Sequence[Section]) -> list[str]:
    added = [f"A {shown_name(section.path)}" for section in sections if isinstance(section, V4aAdd)]
    changed = [
        f"M {shown_name(section.move_to or section.path)}" for section in sections if isinstance(section, V4aUpdate)
    ]
    deleted = [f"D {shown_name(section.path)}" for section in sections if isinstance(section, V4aDelete)]
    return [*added, *changed, *deleted]

"""A patch applied to a sandbox's files: all of it, or nothing."""

import asyncio
import errno
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sandboxes.cancellation import shielded
from sandboxes.errors import PathError
from sandboxes.interface import MIB, Sandbox
from sandboxes.tools.actions.edit_text import EditRefused
from sandboxes.tools.actions.encodings import UTF_8, decoded, encoded
from sandboxes.tools.actions.files import MOST_BYTES, FileActions, text_of
from sandboxes.tools.actions.v4a_patch import (
    AddFile,
    DeleteFile,
    Section,
    UpdateFile,
    V4aError,
    apply_patch,
    parse_patch,
)
from sandboxes.tools.actions.write_deadline import WriteDeadline
from sandboxes.tools.parse_call import MalformedCall
from sandboxes.tools.rendering import shown_name
from sandboxes.tools.tool import ToolErrorKind, ToolResult, refused

_MOST_IN_ALL = 32 * MIB
_SAME_S = 10.0
_REAL_PATHS = 'for path; do /.farm/bin/busybox readlink -f -- "$path"; printf "\\0"; done'


class PatchActions:
    """Takes its turns with whatever else writes files."""

    def __init__(self, files: FileActions) -> None:
        self._files = files

    async def apply(self, sandbox: Sandbox, patch: str, *, cwd: str, timeout_s: float) -> ToolResult:
        """Apply a patch in the V4A format whose paths begin at ``cwd``. Raises MalformedCall for what is no patch."""
        cwd = posixpath.normpath(cwd)
        writing = WriteDeadline(timeout_s)
        try:
            async with writing:
                # In a thread, as what may take long because the policy wants it to: other episodes are served here.
                sections = [_placed(section, cwd) for section in await asyncio.to_thread(parse_patch, patch)]
                return await self._files.in_turn(sandbox, lambda: _apply(sandbox, sections, cwd, writing))
        except V4aError as error:
            raise MalformedCall(ToolErrorKind.BAD_ARGUMENTS, f"{error}; nothing was changed") from None
        except EditRefused as refusal:
            told = f"{refusal}\n[nothing was changed]" if "\n" in str(refusal) else f"{refusal}; nothing was changed"
            return refused(told)
        except TimeoutError:
            return writing.timed_out()


def _placed(section: Section, cwd: str) -> Section:
    """With one spelling for each path: relative to ``cwd`` where it is below."""
    match section:
        case UpdateFile(path, str() as move_to):
            return replace(section, path=_plain(path, cwd), move_to=_plain(move_to, cwd))
        case AddFile(path) | DeleteFile(path) | UpdateFile(path):
            return replace(section, path=_plain(path, cwd))


def _plain(path: str, cwd: str) -> str:
    full = posixpath.normpath(posixpath.join(cwd, path))
    return full.removeprefix(cwd.rstrip("/") + "/")


async def _apply(sandbox: Sandbox, sections: Sequence[Section], cwd: str, writing: WriteDeadline) -> ToolResult:
    before = await _read(sandbox, sections, cwd)
    if len(before) > 1:
        await _check_apart(sandbox, list(before), cwd)
    found = {path: None if data is None else decoded(data) for path, data in before.items()}
    texts = {path: None if text is None else text[0] for path, text in found.items()}
    for section in sections:
        data = before[section.path]
        if isinstance(section, UpdateFile) and data is not None:
            _check_text(section.path, data)
    after = await asyncio.to_thread(apply_patch, sections, texts)
    modes = {
        section.move_to: section.path for section in sections if isinstance(section, UpdateFile) and section.move_to
    }
    written = {
        path: None if text is None else _encoded(path, text, found[modes.get(path, path)])
        for path, text in after.items()
    }
    writing.begin()
    await shielded(_write(sandbox, cwd, before, written, modes))
    return ToolResult("\n".join(["Success. Updated the following files:", *_summary(sections)]))


async def _check_apart(sandbox: Sandbox, paths: Sequence[str], cwd: str) -> None:
    """Raises EditRefused where links make two of the paths one file, for each is patched as if it were alone."""
    argv = ("/.farm/bin/bash", "-c", _REAL_PATHS, "readlink", *(posixpath.join(cwd, path) for path in paths))
    found = await sandbox.exec(argv, timeout_s=_SAME_S, output_limit=MIB)
    real = found.stdout.head.split(b"\0")[:-1]
    if found.exit_code != 0 or len(real) != len(paths):
        return  # nobody can tell: there are paths by the thousand
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
    """What is at each path that a patch names now."""
    before: dict[str, bytes | None] = {}
    total = 0
    for section in sections:
        for path in (section.path, section.move_to if isinstance(section, UpdateFile) else None):
            if path is not None and path not in before:
                before[path] = data = await _content(sandbox, path, cwd)
                total += len(data or b"")
            if total > _MOST_IN_ALL:
                raise EditRefused(
                    f"the files that it names have more than {_MOST_IN_ALL // MIB} MiB: patch fewer at once"
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
    """Write what is new, then remove what is gone; where one of these fails, take back the others.

    ``moved``: new path → old path, whose mode goes with it.
    """
    done: list[str] = []
    made = await _missing(sandbox, cwd, [path for path in after if before[path] is None])
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
        if made:
            await sandbox.exec(("/.farm/bin/busybox", "rmdir", "--", *made), timeout_s=_SAME_S)
        raise EditRefused(shown_name(str(fault))) from None


async def _missing(sandbox: Sandbox, cwd: str, paths: Sequence[str]) -> list[str]:
    """The directories above ``paths`` that are not there, the deepest first."""
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
    added = [f"A {shown_name(section.path)}" for section in sections if isinstance(section, AddFile)]
    changed = [
        f"M {shown_name(section.move_to or section.path)}" for section in sections if isinstance(section, UpdateFile)
    ]
    deleted = [f"D {shown_name(section.path)}" for section in sections if isinstance(section, DeleteFile)]
    return [*added, *changed, *deleted]

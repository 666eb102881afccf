"""File operations of the editing tools of every pack: view, list, create, change and remove."""

import asyncio
import errno
import functools
import posixpath
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from sandboxes.cancellation import shielded
from sandboxes.errors import PathError
from sandboxes.interface import MIB, FileKind, Sandbox
from sandboxes.tools.actions.encodings import UTF_8, decoded, encoded
from sandboxes.tools.actions.nearby_names import names_below, nearest
from sandboxes.tools.actions.syntax_check import new_syntax_error
from sandboxes.tools.actions.text_edits import EditedText, EditRefused, count_lines, lines_around, lines_of
from sandboxes.tools.actions.write_deadline import WriteDeadline
from sandboxes.tools.locks import SandboxLocks
from sandboxes.tools.rendering import fitting, shown_line, shown_name
from sandboxes.tools.tool import ToolResult, refused

T = TypeVar("T")

MOST_BYTES = 8 * MIB
_MOST_LINE_CHARS = 2000
_MIN_LINE_CHARS = 8
"""Minimum characters of a shown line: six digits, a tab, a line end."""
_CACHED_GUTTER_LINES = 4000
_CONTEXT_LINES = 4
_NUL, _NUL_SEARCH_BYTES = b"\0", 8192
_SMALL_CHARS = 256 * 1024
_DIRECTORY, _NO_FILE = "a directory", "no regular file (a device, FIFO or socket)"


@dataclass(frozen=True, slots=True)
class Lines:
    """A range of lines of a file, counted from 1; -1 as ``last`` is the end.

    ``requested`` is the range as the policy wrote it and ``rule`` the valid form; both are for error messages.
    ``more`` names the arguments that show other lines. At most ``most`` lines are shown.
    """

    first: int = 1
    last: int = -1
    requested: str = ""
    rule: str = "give [first, last] with 1 <= first <= last, or -1 as last"
    more: str = "view_range"
    most: int = sys.maxsize


WHOLE = Lines()


def paged(offset: int | None, limit: int | None) -> Lines:
    """Convert ``offset`` (from 1; 0 counts as 1) and ``limit`` to a range of lines."""
    first = max(1, offset or 1)
    last = -1 if limit is None else first - 1 + limit
    requested = "" if offset is None and limit is None else f"offset is {first}"
    return Lines(first, last, requested=requested, rule="give a smaller offset", more="offset and limit")


class FileActions:
    """File operations. Views run concurrently; writes in one sandbox run one at a time."""

    def __init__(self, max_chars: int, *, check_syntax: bool = False) -> None:
        """Set the limits. ``check_syntax``: results also report a syntax error that the edit introduced."""
        self._max_chars = max_chars
        self._check_syntax = check_syntax
        self._locks = SandboxLocks()

    async def view(self, sandbox: Sandbox, path: str, lines: Lines = WHOLE, *, timeout_s: float) -> ToolResult:
        """Show the numbered lines of a file, or a directory two levels deep."""
        return await self._as_result(sandbox, path, lambda _: self._view(sandbox, path, lines, timeout_s), timeout_s)

    async def listing(
        self, sandbox: Sandbox, path: str, *, depth: int, ignore: Sequence[str] = (), timeout_s: float
    ) -> ToolResult:
        """List the names below a directory, without hidden names and names that match a glob of ``ignore``."""
        return await self._as_result(
            sandbox, path, lambda _: self._list(sandbox, path, depth, ignore, timeout_s), timeout_s
        )

    async def create(
        self, sandbox: Sandbox, path: str, text: str, *, over: bool = True, timeout_s: float
    ) -> ToolResult:
        """Write a whole file and create missing parent directories. An existing file is an error unless ``over``."""

        def work(writing: WriteDeadline) -> Awaitable[ToolResult]:
            return self.in_turn(sandbox, lambda: self._create(sandbox, path, text, over, writing))

        return await self._as_result(sandbox, path, work, timeout_s, may_be_missing=True)

    async def change(
        self,
        sandbox: Sandbox,
        path: str,
        change: Callable[[str], EditedText],
        *,
        absent: Callable[[], str] | None = None,
        edits: int = 1,
        timeout_s: float,
    ) -> ToolResult:
        """Replace the text of a file by the result of ``change``, which may raise EditRefused.

        ``edits`` is the number of edits that ``change`` makes. ``absent`` gives the text of a new file if the file is
        missing.
        """

        def work(writing: WriteDeadline) -> Awaitable[ToolResult]:
            return self.in_turn(sandbox, lambda: self._change(sandbox, path, change, absent, edits, writing))

        return await self._as_result(sandbox, path, work, timeout_s)

    async def remove(self, sandbox: Sandbox, path: str, *, timeout_s: float) -> ToolResult:
        """Remove a file or a symlink; the target of a symlink stays."""

        def work(writing: WriteDeadline) -> Awaitable[ToolResult]:
            return self.in_turn(sandbox, lambda: self._remove(sandbox, path, writing))

        return await self._as_result(sandbox, path, work, timeout_s)

    async def in_turn(self, sandbox: Sandbox, work: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """Run ``work`` under the write lock of ``sandbox``."""
        async with self._locks.of(sandbox):
            return await work()

    async def _as_result(
        self,
        sandbox: Sandbox,
        path: str,
        work: Callable[[WriteDeadline], Awaitable[ToolResult]],
        timeout_s: float,
        *,
        may_be_missing: bool = False,
    ) -> ToolResult:
        """Run ``work`` and turn its errors into a result. ``may_be_missing``: ``path`` need not exist."""
        writing = WriteDeadline(timeout_s)
        try:
            async with writing:
                try:
                    return await work(writing)
                except EditRefused as refusal:
                    return refused(f"{shown_name(path)}: {refusal}")
                except PathError as fault:
                    if fault.errno not in (errno.ENOENT, errno.ENOTDIR) or may_be_missing:
                        raise
                    return refused(f"{shown_name(path)} does not exist{await nearest(sandbox, path, timeout_s)}")
        except TimeoutError:
            return writing.timed_out()

    async def _view(self, sandbox: Sandbox, path: str, lines: Lines, timeout_s: float) -> ToolResult:
        try:
            text, encoding = await read_text(sandbox, path)
        except PathError as fault:
            if fault.errno != errno.EISDIR:
                raise
            if lines.requested:
                raise EditRefused(f"is a directory, which has no lines: leave out {lines.more}") from None
            return await self._list(sandbox, path, 2, (), timeout_s)
        shown = await _compute(lambda: _render(lines_of(text), lines, self._max_chars - 100), len(text))
        return (
            shown if encoding == UTF_8 else replace(shown, content=f"{shown.content}\n[no UTF-8: read as {encoding}]")
        )

    async def _list(
        self, sandbox: Sandbox, path: str, depth: int, ignore: Sequence[str], timeout_s: float
    ) -> ToolResult:
        names = await names_below(sandbox, posixpath.join(sandbox.workdir, path), depth, timeout_s, ignore)
        if names is None:
            there = await sandbox.stat(path)
            raise EditRefused(
                "the directory could not be listed" if there.kind is FileKind.DIRECTORY else "is no directory"
            )
        kept = fitting(names, self._max_chars - 200)
        rest = [f"[{len(names) - kept:,} more: view a directory inside it]"] if kept < len(names) else []
        return ToolResult("\n".join([*names[:kept], *rest]) or "[empty directory]", truncated=bool(rest))

    async def _change(
        self,
        sandbox: Sandbox,
        path: str,
        change: Callable[[str], EditedText],
        absent: Callable[[], str] | None,
        edits: int,
        writing: WriteDeadline,
    ) -> ToolResult:
        try:
            text, encoding = await read_text(sandbox, path)
        except PathError as fault:
            if fault.errno != errno.ENOENT or absent is None:
                raise
            made = await _compute(absent, _SMALL_CHARS * edits)
            return await self._create(sandbox, path, made, False, writing)

        def work() -> tuple[EditedText, bytes, ToolResult]:
            edited = change(text)
            return edited, _check_no_nul(encoded(edited.text, encoding)), _snippet(path, edited, self._max_chars)

        edited, data, done = await _compute(work, len(text) * edits)
        writing.begin()
        await sandbox.write_file(path, data)
        return await self._with_syntax_error(sandbox, path, text, edited.text, done)

    async def _create(self, sandbox: Sandbox, path: str, text: str, over: bool, writing: WriteDeadline) -> ToolResult:
        data = _check_no_nul(text.encode())
        writing.begin()
        try:
            replaced = await sandbox.write_file(path, data, parents=True, new=not over)
        except PathError as fault:
            if fault.errno == errno.EEXIST:
                raise EditRefused("is there already; create makes new files only") from None
            if fault.errno in (errno.EISDIR, errno.EINVAL):
                what = _DIRECTORY if fault.errno == errno.EISDIR else _NO_FILE
                raise EditRefused(f"is {what}; create writes files only") from None
            raise
        count = count_lines(text)
        done = f"{'Overwrote' if replaced else 'Created'} {shown_name(path)}: {count} line{'s' * (count != 1)}."
        return await self._with_syntax_error(sandbox, path, None, text, ToolResult(done))

    async def _with_syntax_error(
        self, sandbox: Sandbox, path: str, before: str | None, after: str, done: ToolResult
    ) -> ToolResult:
        fault = await new_syntax_error(sandbox, path, before, after) if self._check_syntax else None
        return replace(done, content=f"{done.content}\n[syntax error, {fault}]") if fault else done

    async def _remove(self, sandbox: Sandbox, path: str, writing: WriteDeadline) -> ToolResult:
        there = await sandbox.stat(path)
        if there.kind in (FileKind.DIRECTORY, FileKind.OTHER):
            raise EditRefused(
                f"is {_DIRECTORY if there.kind is FileKind.DIRECTORY else _NO_FILE}; only files are deleted"
            )
        writing.begin()
        await sandbox.remove_path(path)
        return ToolResult(f"Deleted {shown_name(path)}.")


class OnFiles:
    """A tool that uses FileActions."""

    def __init__(self, files: FileActions) -> None:
        self._files = files


async def _compute(work: Callable[[], T], chars: int) -> T:
    """Run ``work`` on ``chars`` characters: in a thread if that is much, because the event loop serves other episodes.

    A cancelled call waits for its thread, because a thread cannot be stopped and the caller could start the next one.
    """
    return work() if chars <= _SMALL_CHARS else await shielded(asyncio.to_thread(work))


def _check_no_nul(data: bytes) -> bytes:
    if _NUL in data[:_NUL_SEARCH_BYTES]:
        raise EditRefused(
            "with a NUL character it would be a binary file, which no editor here opens: use bash (printf)"
        )
    return data


async def read_text(sandbox: Sandbox, path: str) -> tuple[str, str]:
    """Read a text file and return its text and encoding. Raises PathError, and EditRefused if it is no text or too
    large.
    """
    data = await sandbox.read_file(path, limit=MOST_BYTES + 1)
    return await _compute(lambda: text_of(data), len(data))


def text_of(data: bytes) -> tuple[str, str]:
    """Decode the bytes of a text file. Raises EditRefused if they are no text or more than ``MOST_BYTES``."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise EditRefused("is UTF-16 text; convert it with bash (iconv) or edit it there")
    if _NUL in data[:_NUL_SEARCH_BYTES]:
        raise EditRefused("is a binary file; look at it with bash (file, xxd, od)")
    if len(data) > MOST_BYTES:
        raise EditRefused(f"has more than {MOST_BYTES // MIB} MiB; use bash (sed -n, head, tail) or grep")
    return decoded(data)


def _cut(line: str, limit: int) -> str:
    over = len(line) - limit
    return line if over <= 0 else f"{line[:limit]} [... {over:,} more characters]"


def _render(lines: Sequence[str], part: Lines, max_chars: int) -> ToolResult:
    if not lines:
        return ToolResult("[the file is empty]")
    last = len(lines) if part.last == -1 else min(part.last, len(lines))
    if not 1 <= part.first <= last:
        raise EditRefused(f"{part.requested}, but the file has {len(lines)} lines: {part.rule}")
    requested = lines[part.first - 1 : min(last, part.first - 1 + part.most, part.first + max_chars // _MIN_LINE_CHARS)]
    page, kept, cut = _number(requested, part.first, max_chars)
    if part.first + kept <= last:
        page, cut = page + _hidden_lines_note(part.first + kept, last, len(lines), part.more), True
    return ToolResult(page, truncated=cut)


def _number(lines: Sequence[str], first: int, max_chars: int) -> tuple[str, int, bool]:
    """Number ``lines`` from ``first`` as ``cat -n`` does, as many as fit.

    Return the text, the number of lines in it, and whether a line was cut.
    """
    longest = min(_MOST_LINE_CHARS, max_chars // 2)
    room, digits = max_chars - 200, max(6, len(str(first + len(lines) - 1)))
    if cut := max(map(len, lines)) > longest:
        lines = [_cut(line, longest) for line in lines]
    kept = fitting(lines, room, beside=digits + 2)
    parts = [""] * (2 * kept)
    parts[::2], parts[1::2] = _gutter(first, kept), lines[:kept]
    numbered = "".join(parts)[1:]
    page = shown_line(numbered)
    if len(page) > len(numbered):  # a byte that is not UTF-8 takes four characters
        shown = page.split("\n")
        kept = fitting(shown, room)
        page = "\n".join(shown[:kept])
    return page, kept, cut


def _gutter(first: int, count: int) -> Sequence[str]:
    """Return the text before each line: line end, number, tab."""
    if first + count > _CACHED_GUTTER_LINES:
        return ["\n%6d\t" % number for number in range(first, first + count)]  # noqa: UP031 - twice as fast
    return _cached_gutter()[first - 1 : first - 1 + count]


@functools.cache
def _cached_gutter() -> Sequence[str]:
    """Return the gutter of the first lines, built once: formatting the numbers is most of the cost of a view."""
    return [f"\n{number:6}\t" for number in range(1, _CACHED_GUTTER_LINES)]


def _hidden_lines_note(first: int, last: int, count: int, more: str) -> str:
    return f"\n[lines {first} to {last} of {count} are not shown: use {more}]"


def _snippet(path: str, edited: EditedText, max_chars: int) -> ToolResult:
    """Show the lines that an edit wrote, with some lines around them."""
    first, lines = lines_around(edited, _CONTEXT_LINES)
    name = shown_name(path)
    if not lines:
        return ToolResult(f"Edited {name}: the file is empty now.")
    page, kept, cut = _number(lines, first, max(500, min(max_chars, 10_000) - len(name)))
    if kept < len(lines):
        rest = first + kept, first + len(lines) - 1
        page, cut = page + _hidden_lines_note(*rest, count_lines(edited.text), WHOLE.more), True
    return ToolResult(f"Edited {name}:\n{page}", truncated=cut)

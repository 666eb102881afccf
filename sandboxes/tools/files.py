"""What the editing tools of every pack do: look at files and directories, write, change and remove files."""

import asyncio
import difflib
import errno
import posixpath
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sandboxes.errors import PathError
from sandboxes.sandbox import MIB, FileKind, Sandbox
from sandboxes.tools.editing import Edited, EditRefused, decode, encode, lines_of
from sandboxes.tools.rendering import fitting, shown_line, shown_name
from sandboxes.tools.ripgrep import files_named
from sandboxes.tools.serial import OneAtATime
from sandboxes.tools.syntax import fault_brought_in
from sandboxes.tools.tool import ToolErrorKind, ToolResult

MOST_BYTES = 8 * MIB
_MOST_LINE_CHARS = 2000
_AROUND = 4
_MOST_STEPS_UP = 16
_LISTING_BYTES = MIB
_SMALL_CHARS = 256 * 1024


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines ``first`` to ``last`` of a file, from 1; -1 as ``last`` is the end.

    ``asked`` and ``rule`` are the policy's own words for them and what they should be; ``more`` says by which
    arguments others are seen. ``most`` of them are shown.
    """

    first: int = 1
    last: int = -1
    asked: str = ""
    rule: str = "give [first, last] with 1 <= first <= last, or -1 as last"
    more: str = "view_range"
    most: int = sys.maxsize


WHOLE = Lines()


class Files:
    """Views may run side by side; what writes in one sandbox takes its turns."""

    def __init__(self, max_chars: int, *, check_syntax: bool = False) -> None:
        """``check_syntax``: a result also tells what its edit broke."""
        self._max_chars = max_chars
        self._check_syntax = check_syntax
        self._serial = OneAtATime()

    async def view(self, sandbox: Sandbox, path: str, lines: Lines = WHOLE, *, timeout_s: float) -> ToolResult:
        """A file's lines numbered, or a directory two levels deep."""
        return await self._told(sandbox, path, self._view(sandbox, path, lines, timeout_s), timeout_s)

    async def listing(
        self, sandbox: Sandbox, path: str, *, depth: int, ignore: Sequence[str] = (), timeout_s: float
    ) -> ToolResult:
        """The names below a directory, but hidden ones and those that match a glob of ``ignore``."""
        return await self._told(sandbox, path, self._list(sandbox, path, depth, ignore, timeout_s), timeout_s)

    async def create(
        self, sandbox: Sandbox, path: str, text: str, *, over: bool = True, timeout_s: float
    ) -> ToolResult:
        """Write a whole file; parents are made. Refused where one is there already, unless ``over``."""
        return await self._told(
            sandbox, path, self.in_turn(sandbox, lambda: self._create(sandbox, path, text, over)), timeout_s, make=True
        )

    async def change(
        self,
        sandbox: Sandbox,
        path: str,
        change: Callable[[str], Edited],
        *,
        absent: Callable[[], str] | None = None,
        timeout_s: float,
    ) -> ToolResult:
        """Put what ``change`` makes of a file's text in its place.

        ``change`` may raise EditRefused. Where there is no such file, one is made of what ``absent`` gives.
        """
        return await self._told(
            sandbox, path, self.in_turn(sandbox, lambda: self._change(sandbox, path, change, absent)), timeout_s
        )

    async def remove(self, sandbox: Sandbox, path: str, *, timeout_s: float) -> ToolResult:
        """Remove a file or a symlink, not what it names."""
        return await self._told(sandbox, path, self.in_turn(sandbox, lambda: self._remove(sandbox, path)), timeout_s)

    async def in_turn(self, sandbox: Sandbox, work: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        """Do ``work`` while none of these tools writes in ``sandbox``."""
        async with self._serial.of(sandbox):
            return await work()

    async def _told(
        self, sandbox: Sandbox, path: str, work: Awaitable[ToolResult], timeout_s: float, *, make: bool = False
    ) -> ToolResult:
        """What came of ``work``, or why it could not be done. ``make``: it may be that ``path`` is not there."""
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    return await work
                except EditRefused as refusal:
                    return _refused(f"{shown_name(path)}: {refusal}")
                except PathError as fault:
                    if fault.errno not in (errno.ENOENT, errno.ENOTDIR) or make:
                        raise
                    return _refused(f"{shown_name(path)} does not exist{await _nearest(sandbox, path, timeout_s)}")
        except TimeoutError:
            return ToolResult(f"error: timed out after {timeout_s:g} s", ToolErrorKind.TIMEOUT, timed_out=True)

    async def _view(self, sandbox: Sandbox, path: str, lines: Lines, timeout_s: float) -> ToolResult:
        try:
            text = await read_text(sandbox, path)
        except PathError as fault:
            if fault.errno != errno.EISDIR:
                raise
            if lines.asked:
                raise EditRefused(f"is a directory: {lines.more} is for files") from None
            return await self._list(sandbox, path, 2, (), timeout_s)
        return _shown(lines_of(text), lines, self._max_chars)

    async def _list(
        self, sandbox: Sandbox, path: str, depth: int, ignore: Sequence[str], timeout_s: float
    ) -> ToolResult:
        names = await _names(sandbox, posixpath.join(sandbox.workdir, path), depth, timeout_s, ignore)
        if names is None:
            there = await sandbox.stat(path)
            raise EditRefused("is no directory" if there.kind is FileKind.FILE else "the directory could not be listed")
        kept = fitting(names, self._max_chars - 200)
        rest = [f"[{len(names) - kept:,} more: view a directory inside it]"] if kept < len(names) else []
        return ToolResult("\n".join([*names[:kept], *rest]) or "[empty directory]", truncated=bool(rest))

    async def _change(
        self, sandbox: Sandbox, path: str, change: Callable[[str], Edited], absent: Callable[[], str] | None
    ) -> ToolResult:
        try:
            text = await read_text(sandbox, path)
        except PathError as fault:
            if fault.errno != errno.ENOENT or absent is None:
                raise
            return await self._create(sandbox, path, absent(), over=False)
        # Many edits of a large file may take seconds, and other episodes are served here.
        edited = change(text) if len(text) <= _SMALL_CHARS else await asyncio.to_thread(change, text)
        await sandbox.write_file(path, encode(edited.text))
        return await self._with_fault(sandbox, path, text, edited.text, _snippet(path, edited, self._max_chars))

    async def _create(self, sandbox: Sandbox, path: str, text: str, over: bool) -> ToolResult:
        try:
            there = await sandbox.stat(path)
        except PathError:
            there = None
        if there is not None and there.kind in (FileKind.DIRECTORY, FileKind.OTHER):
            raise EditRefused(f"is {_kind(there.kind)}; create writes files only")
        if there is not None and not over:
            raise EditRefused("is there already; create makes new files only")
        await sandbox.write_file(path, text.encode(), parents=True)
        count = len(lines_of(text))
        done = f"{'Created' if there is None else 'Overwrote'} {shown_name(path)}: {count} line{'s' * (count != 1)}."
        return await self._with_fault(sandbox, path, None, text, ToolResult(done))

    async def _with_fault(
        self, sandbox: Sandbox, path: str, before: str | None, after: str, done: ToolResult
    ) -> ToolResult:
        fault = await fault_brought_in(sandbox, path, before, after) if self._check_syntax else None
        return replace(done, content=f"{done.content}\n[syntax error, {fault}]") if fault else done

    async def _remove(self, sandbox: Sandbox, path: str) -> ToolResult:
        there = await sandbox.stat(path)
        if there.kind in (FileKind.DIRECTORY, FileKind.OTHER):
            raise EditRefused(f"is {_kind(there.kind)}; only files are deleted")
        await sandbox.remove_path(path)
        return ToolResult(f"Deleted {shown_name(path)}.")


def _refused(message: str) -> ToolResult:
    return ToolResult(f"error: {message}", error_kind=ToolErrorKind.REFUSED)


def _kind(kind: FileKind) -> str:
    return "a directory" if kind is FileKind.DIRECTORY else "no regular file (a device, FIFO or socket)"


async def read_text(sandbox: Sandbox, path: str) -> str:
    """A text file as ``decode`` gives it. Raises EditRefused for what is no text or too long, and PathError."""
    return text_of(await sandbox.read_file(path, limit=MOST_BYTES + 1))


def text_of(data: bytes) -> str:
    """A text file's bytes, ``decode``d. Raises EditRefused for what is no text or has more than ``MOST_BYTES``."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise EditRefused("is UTF-16 text; convert it with bash (iconv) or edit it there")
    if b"\0" in data[:8192]:
        raise EditRefused("is a binary file; look at it with bash (file, xxd, od)")
    if len(data) > MOST_BYTES:
        raise EditRefused(f"has more than {MOST_BYTES // MIB} MiB; use bash (sed -n, head, tail) or grep")
    return decode(data)


def _cut(line: str, limit: int) -> str:
    over = len(line) - limit
    return line if over <= 0 else f"{line[:limit]} [... {over:,} more characters]"


def _shown(lines: Sequence[str], part: Lines, max_chars: int) -> ToolResult:
    if not lines:
        return ToolResult("[the file is empty]")
    last = len(lines) if part.last == -1 else min(part.last, len(lines))
    if not 1 <= part.first <= last:
        raise EditRefused(f"{part.asked}, but the file has {len(lines)} lines: {part.rule}")
    return _page(lines, part.first, last, max_chars, more=part.more, most=part.most)


def _page(
    lines: Sequence[str], first: int, last: int, max_chars: int, *, more: str, most: int = sys.maxsize
) -> ToolResult:
    longest = min(_MOST_LINE_CHARS, max_chars // 2)
    room, digits = max_chars - 200, max(6, len(str(last)))
    asked = lines[
        first - 1 : min(last, first - 1 + most, first + room // 8)
    ]  # six digits, a tab, a line end: no more can fit
    if cut := max(map(len, asked)) > longest:
        asked = [_cut(line, longest) for line in asked]
    kept = fitting(asked, room, beside=digits + 2)
    # As ``cat -n`` shows them. An f-string takes more than twice as long, and this is most of what a view costs.
    numbered = "\n".join(["%6d\t%s" % pair for pair in enumerate(asked[:kept], first)])  # noqa: UP031
    page = shown_line(numbered)
    if len(page) > len(numbered):  # a byte that is not UTF-8 takes four characters
        shown = page.split("\n")
        kept = fitting(shown, room)
        page = "\n".join(shown[:kept])
    if first + kept <= last:
        page += f"\n[lines {first + kept} to {last} of {len(lines)} are not shown: use {more}]"
        cut = True
    return ToolResult(page, truncated=cut)


def _snippet(path: str, edited: Edited, max_chars: int) -> ToolResult:
    """The lines that were written, with some around them."""
    lines = lines_of(edited.text)
    name = shown_name(path)
    if not lines:
        return ToolResult(f"Edited {name}: the file is empty now.")
    first = max(1, min(edited.first, len(lines)) - _AROUND)
    last = min(len(lines), max(edited.first, edited.last) + _AROUND)
    page = _page(lines, first, last, max(500, min(max_chars, 10_000) - len(name)), more=WHOLE.more)
    return ToolResult(f"Edited {name}:\n{page.content}", truncated=page.truncated)


async def _names(
    sandbox: Sandbox, directory: str, depth: int, timeout_s: float, ignore: Sequence[str] = ()
) -> list[str] | None:
    """Names below ``directory``, sorted, directories with a slash at the end; None where they cannot be had."""
    patterns = [".*", "node_modules", "__pycache__", *ignore]
    skip = [word for pattern in patterns for word in ("-o", "-name", pattern)][1:]
    walk = ("find", ".", "-mindepth", "1", "-maxdepth", str(depth), "(", *skip, ")", "-prune")
    # Every name is printed, and a directory's once more: twice in a row tells the two apart.
    argv = ("/.farm/bin/busybox", *walk, "-o", "-print0", "-type", "d", "-print0")
    outcome = await sandbox.exec(argv, cwd=directory, timeout_s=timeout_s, output_limit=_LISTING_BYTES)
    records = (outcome.stdout.head + (outcome.stdout.tail if outcome.stdout.whole else b"")).split(b"\0")[:-1]
    if not records and outcome.exit_code != 0:
        return None
    names = dict.fromkeys(records, False)
    for one, other in pairwise(records):
        if one == other:
            names[one] = True
    return [
        shown_name(name.removeprefix(b"./")) + "/" * names[name]
        for name in sorted(names, key=lambda name: name.split(b"/"))
    ]


async def _nearest(sandbox: Sandbox, path: str, timeout_s: float) -> str:
    """A remedy for a name that is not there: like names where the path breaks off, or files of that name elsewhere."""
    at, beside = path.rstrip("/"), None
    for _ in range(_MOST_STEPS_UP):
        at, missing = posixpath.split(at)
        beside = await _names(sandbox, posixpath.join(sandbox.workdir, at), 1, timeout_s)
        if beside is not None or at in ("", "/"):
            break
    near = difflib.get_close_matches(missing, [name.rstrip("/") for name in beside or ()], n=3, cutoff=0.6)
    found = [shown_name(posixpath.join(at, name)) for name in near]
    if not found:
        found = await files_named(sandbox, posixpath.basename(path), timeout_s=timeout_s)
    return f"; did you mean {' or '.join(found)}?" if found else ""

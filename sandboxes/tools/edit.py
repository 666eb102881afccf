"""View and edit files."""

import asyncio
import difflib
import errno
import posixpath
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sandboxes.errors import PathError
from sandboxes.sandbox import MIB, FileKind, Sandbox
from sandboxes.tools.arguments import Name
from sandboxes.tools.editing import Edited, EditRefused, decode, encode, insert, lines_of, replace
from sandboxes.tools.rendering import fitting, shown_line, shown_name
from sandboxes.tools.ripgrep import files_named
from sandboxes.tools.serial import OneAtATime
from sandboxes.tools.tool import ToolErrorKind, ToolResult

MOST_BYTES = 8 * MIB
_MOST_LINE_CHARS = 2000
_AROUND = 4
_MOST_STEPS_UP = 16
_LISTING_BYTES = MIB
_TAKES: dict[str, tuple[set[str], set[str]]] = {
    "view": (set(), {"view_range"}),
    "create": ({"file_text"}, set()),
    "str_replace": ({"old_str", "new_str"}, set()),
    "insert": ({"insert_line", "insert_text"}, set()),
}


class EditInput(BaseModel):
    model_config = ConfigDict(extra="forbid")

    command: Annotated[Literal["view", "create", "str_replace", "insert"], Field(description="What to do.")]
    path: Annotated[Name, Field(description="File, or directory to view; a relative one from the working directory.")]
    view_range: Annotated[
        list[int] | None,
        Field(min_length=2, max_length=2, description="view: first and last line, from 1; -1 as last is the end."),
    ] = None
    file_text: Annotated[str | None, Field(description="create: the whole content.")] = None
    old_str: Annotated[
        str | None, Field(min_length=1, description="str_replace: text that occurs exactly once, white space and all.")
    ] = None
    new_str: Annotated[str | None, Field(description="str_replace: what to put in its place; may be empty.")] = None
    insert_line: Annotated[
        int | None, Field(ge=0, description="insert: the line after which the text goes; 0 is the beginning.")
    ] = None
    insert_text: Annotated[str | None, Field(min_length=1, description="insert: whole lines.")] = None

    @model_validator(mode="after")
    def _fits_the_command(self) -> Self:
        needed, allowed = _TAKES[self.command]
        given = {name for name in type(self).model_fields if getattr(self, name) is not None} - {"command", "path"}
        takes = ", ".join(sorted(needed) + [f"{name} (optional)" for name in sorted(allowed)])
        if missing := sorted(needed - given):
            raise ValueError(f"{self.command} needs {' and '.join(missing)}")
        if extra := sorted(given - needed - allowed):
            raise ValueError(f"{self.command} takes path, {takes}; not {' or '.join(extra)}")
        return self


class Edit:
    name: ClassVar[str] = "str_replace_based_edit_tool"
    description: ClassVar[str] = (
        "View and edit files. view: a file's lines numbered, or a directory two levels deep without hidden names, "
        "node_modules and __pycache__. create: write a whole file, over an old one too; parents are made. str_replace: "
        "replace text that occurs exactly once. insert: put lines after a line. Bytes, encoding and line ends that an "
        "edit does not name stay as they are. Text files up to 8 MiB."
    )
    Input: ClassVar[type[BaseModel]] = EditInput

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._serial = OneAtATime()

    async def run(self, sandbox: Sandbox, args: EditInput, *, timeout_s: float) -> ToolResult:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._answered(sandbox, args, timeout_s)
        except TimeoutError:
            return ToolResult(f"error: timed out after {timeout_s:g} s", ToolErrorKind.TIMEOUT, timed_out=True)

    async def _answered(self, sandbox: Sandbox, args: EditInput, timeout_s: float) -> ToolResult:
        try:
            if args.command == "view":
                return await self._view(sandbox, args, timeout_s)
            async with self._serial.of(sandbox):
                return await self._write(sandbox, args)
        except EditRefused as refusal:
            return _refused(f"{shown_name(args.path)}: {refusal}")
        except PathError as fault:
            if fault.errno not in (errno.ENOENT, errno.ENOTDIR) or args.command == "create":
                raise
            return _refused(f"{shown_name(args.path)} does not exist{await _nearest(sandbox, args.path, timeout_s)}")

    async def _view(self, sandbox: Sandbox, args: EditInput, timeout_s: float) -> ToolResult:
        try:
            text = await _read(sandbox, args.path)
        except PathError as fault:
            if fault.errno != errno.EISDIR:
                raise
            return await self._list(sandbox, args, timeout_s)
        return _shown(lines_of(text), args.view_range, self._max_chars)

    async def _write(self, sandbox: Sandbox, args: EditInput) -> ToolResult:
        if args.command == "create":
            return await self._create(sandbox, args.path, args.file_text or "")
        text = await _read(sandbox, args.path)
        if args.command == "insert":
            edited = insert(text, args.insert_line or 0, args.insert_text or "")
        else:
            edited = replace(text, args.old_str or "", args.new_str or "")
        await sandbox.write_file(args.path, encode(edited.text))
        return _snippet(args.path, edited, self._max_chars)

    async def _create(self, sandbox: Sandbox, path: str, text: str) -> ToolResult:
        try:
            there = await sandbox.stat(path)
        except PathError:
            there = None
        if there is not None and there.kind in (FileKind.DIRECTORY, FileKind.OTHER):
            raise EditRefused(f"is {_kind(there.kind)}; create writes files only")
        await sandbox.write_file(path, text.encode(), parents=True)
        count = len(lines_of(text))
        return ToolResult(
            f"{'Created' if there is None else 'Overwrote'} {shown_name(path)}: {count} line{'s' * (count != 1)}."
        )

    async def _list(self, sandbox: Sandbox, args: EditInput, timeout_s: float) -> ToolResult:
        if args.view_range is not None:
            raise EditRefused("is a directory: view_range is for files")
        names = await _names(sandbox, posixpath.join(sandbox.workdir, args.path), 2, timeout_s)
        if names is None:
            raise EditRefused("the directory could not be listed")
        kept = fitting(names, self._max_chars - 200)
        rest = [f"[{len(names) - kept:,} more: view a directory inside it]"] if kept < len(names) else []
        return ToolResult("\n".join([*names[:kept], *rest]) or "[empty directory]", truncated=bool(rest))


def _refused(message: str) -> ToolResult:
    return ToolResult(f"error: {message}", error_kind=ToolErrorKind.REFUSED)


def _kind(kind: FileKind) -> str:
    return "a directory" if kind is FileKind.DIRECTORY else "no regular file (a device, FIFO or socket)"


async def _read(sandbox: Sandbox, path: str) -> str:
    data = await sandbox.read_file(path, limit=MOST_BYTES + 1)
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


def _shown(lines: Sequence[str], view_range: Sequence[int] | None, max_chars: int) -> ToolResult:
    if not lines:
        return ToolResult("[the file is empty]")
    first, last = view_range or (1, -1)
    if last == -1 or last > len(lines):
        last = len(lines)
    if not 1 <= first <= last:
        wanted = f"view_range is {list(view_range or ())}, but the file has {len(lines)} lines"
        raise EditRefused(f"{wanted}: give [first, last] with 1 <= first <= last, or -1 as last")
    return _page(lines, first, last, max_chars)


def _page(lines: Sequence[str], first: int, last: int, max_chars: int) -> ToolResult:
    longest = min(_MOST_LINE_CHARS, max_chars // 2)
    room, digits = max_chars - 200, max(6, len(str(last)))
    asked = lines[first - 1 : min(last, first + room // 8)]  # six digits, a tab, a line end: no more can fit
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
        page += f"\n[lines {first + kept} to {last} of {len(lines)} are not shown: use view_range]"
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
    page = _page(lines, first, last, max(500, min(max_chars, 10_000) - len(name)))
    return ToolResult(f"Edited {name}:\n{page.content}", truncated=page.truncated)


async def _names(sandbox: Sandbox, directory: str, depth: int, timeout_s: float) -> list[str] | None:
    """Names below ``directory``, sorted, directories with a slash at the end; None where they cannot be had."""
    skip = ("-name", ".*", "-o", "-name", "node_modules", "-o", "-name", "__pycache__")
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

"""The tools of Cursor's agent that need no model of their own: its names and arguments over the shared actions."""

import asyncio
import posixpath
from collections.abc import Sequence
from typing import Annotated, ClassVar, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from sandboxes.interface import Sandbox
from sandboxes.tools.actions.edit_command import edit
from sandboxes.tools.actions.files import WHOLE, Lines, OnFiles, paged
from sandboxes.tools.actions.ripgrep import listed, search
from sandboxes.tools.actions.terminal import SHELL, OnTerminal
from sandboxes.tools.actions.text_edits import Replacement
from sandboxes.tools.arguments import Arguments, Command, Name, UnusedFlag
from sandboxes.tools.packs.default.grep import matching, shown_match
from sandboxes.tools.rendering import shown_name
from sandboxes.tools.tool import Reads, Tool, ToolResult, Writes

_MOST_MATCHES = 50
_MOST_FILES = 10


class _Explained(Arguments):
    explanation: Annotated[str | None, Field(description="One sentence on why it is used.")] = None


class SearchInput(_Explained):
    query: Annotated[
        str, Field(min_length=1, max_length=4096, description="What the code does, in plain words or its own.")
    ]
    target_directories: Annotated[
        list[Name] | None,
        Field(max_length=1, description="One directory to search; without it, all of the repository."),
    ] = None


class Search(Reads):
    name: ClassVar[str] = "codebase_search"
    description: ClassVar[str] = (
        "Find code in the repository by its meaning: functions, classes and passages that have to do with the query, "
        "the best first, each with path, lines, name and how it begins. Your own edits are seen. Use grep_search for "
        "exact strings."
    )
    Input: ClassVar[type[BaseModel]] = SearchInput

    def __init__(self, core: Tool) -> None:
        """Wrap ``core``, the ``codebase_search`` tool of the default pack."""
        self._core = core

    async def run(self, sandbox: Sandbox, args: SearchInput, *, timeout_s: float) -> ToolResult:
        path = next(iter(args.target_directories or ()), None)
        arguments = self._core.Input.model_validate({"query": args.query, "path": path})
        return await self._core.run(sandbox, arguments, timeout_s=timeout_s)


class ReadFileInput(_Explained):
    """Arguments of ``read_file``.

    Cursor's later form is accepted too: ``offset`` and ``limit``, or neither for the whole file.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "required": [
                "target_file",
                "should_read_entire_file",
                "start_line_one_indexed",
                "end_line_one_indexed_inclusive",
            ]
        }
    )
    target_file: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    should_read_entire_file: Annotated[bool, Field(description="All of it, whatever the two lines say.")] = False
    start_line_one_indexed: Annotated[int | None, Field(description="The first line, from 1.")] = None
    end_line_one_indexed_inclusive: Annotated[int | None, Field(description="The last line; -1 is the end.")] = None
    offset: SkipJsonSchema[Annotated[int | None, Field(ge=0)]] = None
    limit: SkipJsonSchema[Annotated[int | None, Field(ge=1)]] = None

    @model_validator(mode="after")
    def _is_of_one_form(self) -> Self:
        older = self.start_line_one_indexed, self.end_line_one_indexed_inclusive
        if older != (None, None) and (self.offset, self.limit) != (None, None):
            raise ValueError("give either the two lines or offset and limit")
        return self

    @property
    def lines(self) -> Lines:
        if self.should_read_entire_file:
            return WHOLE
        if self.offset is not None or self.limit is not None:
            return paged(self.offset, self.limit)
        first = 1 if self.start_line_one_indexed is None else self.start_line_one_indexed
        last = -1 if self.end_line_one_indexed_inclusive is None else self.end_line_one_indexed_inclusive
        return Lines(
            first,
            last,
            requested=f"lines {first} to {last} are asked for",
            rule="give 1 <= start_line_one_indexed <= end_line_one_indexed_inclusive, or -1 as the end",
            more="the two lines",
        )


class ReadFile(OnFiles, Reads):
    name: ClassVar[str] = "read_file"
    description: ClassVar[str] = "Read a text file, or some lines of it, numbered."
    Input: ClassVar[type[BaseModel]] = ReadFileInput

    async def run(self, sandbox: Sandbox, args: ReadFileInput, *, timeout_s: float) -> ToolResult:
        return await self._files.view(sandbox, args.target_file, args.lines, timeout_s=timeout_s)


class TerminalInput(_Explained):
    command: Annotated[Command, Field(description="The command to run.")]
    is_background: Annotated[
        bool, Field(description="Do not wait for it. What it prints is seen only in files that it is redirected to.")
    ] = False
    require_user_approval: UnusedFlag = None


class RunTerminalCommand(OnTerminal, Writes):
    name: ClassVar[str] = "run_terminal_cmd"
    description: ClassVar[str] = SHELL
    Input: ClassVar[type[BaseModel]] = TerminalInput

    async def run(self, sandbox: Sandbox, args: TerminalInput, *, timeout_s: float) -> ToolResult:
        if args.is_background:
            return await self._terminal.start(sandbox, args.command)
        return await self._terminal.run(sandbox, args.command, timeout_s=timeout_s)


class ListDirInput(_Explained):
    relative_workspace_path: Annotated[
        Name,
        Field(
            validation_alias=AliasChoices("relative_workspace_path", "target_directory"),
            description="The directory, from the working directory.",
        ),
    ]
    ignore_globs: SkipJsonSchema[Annotated[list[Name] | None, Field(max_length=100)]] = None


class ListDir(OnFiles, Reads):
    name: ClassVar[str] = "list_dir"
    description: ClassVar[str] = "List a directory, without hidden names, node_modules and __pycache__."
    Input: ClassVar[type[BaseModel]] = ListDirInput

    async def run(self, sandbox: Sandbox, args: ListDirInput, *, timeout_s: float) -> ToolResult:
        path, ignore = args.relative_workspace_path, args.ignore_globs or ()
        return await self._files.listing(sandbox, path, depth=1, ignore=ignore, timeout_s=timeout_s)


class GrepSearchInput(_Explained):
    query: Annotated[Name, Field(description="Regular expression in Rust's syntax; escape literal braces: \\{\\}.")]
    case_sensitive: Annotated[bool, Field(description="Whether upper and lower case differ.")] = False
    include_pattern: Annotated[Name | None, Field(description='Only files whose path matches, e.g. "*.ts".')] = None
    exclude_pattern: Annotated[Name | None, Field(description="No files whose path matches.")] = None


class GrepSearch(Reads):
    name: ClassVar[str] = "grep_search"
    description: ClassVar[str] = (
        "Search file contents with ripgrep, sorted by path: 50 lines at most, with their numbers. Hidden files are "
        "searched; .git, binary files and what .gitignore excludes are not. Lines over 1,000 characters are cut."
    )
    Input: ClassVar[type[BaseModel]] = GrepSearchInput

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    async def run(self, sandbox: Sandbox, args: GrepSearchInput, *, timeout_s: float) -> ToolResult:
        options = ["--no-heading", "--with-filename", "--line-number", "--max-columns=1000", "--max-columns-preview"]
        options += matching(args.query, not args.case_sensitive)
        globs = [args.include_pattern] if args.include_pattern else []
        globs += [f"!{args.exclude_pattern}"] if args.exclude_pattern else []
        found = await search(sandbox, options, ".", globs=globs, cwd=sandbox.workdir, timeout_s=timeout_s)
        return listed(
            found,
            shown_match,
            none="No matches.",
            limit=_MOST_MATCHES,
            max_chars=self._max_chars,
            narrow="narrow the query or the patterns",
        )


class FileSearchInput(_Explained):
    query: Annotated[str, Field(min_length=1, max_length=256, description="Part of the path, or its letters in order.")]


class FileSearch(Reads):
    name: ClassVar[str] = "file_search"
    description: ClassVar[str] = (
        "Find files by a part of their path, or by some of its letters in order: the ten that match best. Hidden files "
        "are included; .git and what .gitignore excludes are not."
    )
    Input: ClassVar[type[BaseModel]] = FileSearchInput

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    async def run(self, sandbox: Sandbox, args: FileSearchInput, *, timeout_s: float) -> ToolResult:
        found = await search(
            sandbox, ("--files", "--null"), ".", cwd=sandbox.workdir, timeout_s=timeout_s, separator=b"\0"
        )
        best = await asyncio.to_thread(_closest, found.records, args.query)
        note = ["[there are too many files to look at all of them: the search is incomplete]"] if found.more else []
        return ToolResult("\n".join([*best, *note]) or "No files.", truncated=found.more)


def _closest(records: Sequence[bytes], query: str) -> list[str]:
    return closest([shown_name(record.removeprefix(b"./")) for record in records], query)


def closest(paths: Sequence[str], query: str) -> list[str]:
    """Return the paths that contain ``query``, or at least its letters in order; the closest matches first."""
    wanted = "".join(query.casefold().split())
    ranked = [(rank, len(path), path) for path in paths if (rank := _rank(path.casefold(), wanted)) is not None]
    return [path for _, _, path in sorted(ranked)[:_MOST_FILES]]


def _rank(path: str, wanted: str) -> int | None:
    name = posixpath.basename(path)
    for rank, holds in enumerate((name == wanted, name.startswith(wanted), wanted in name, wanted in path)):
        if holds:
            return rank
    at = 0
    for letter in wanted:
        at = path.find(letter, at) + 1
        if not at:
            return None
    return 4


class SearchReplaceInput(Arguments):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    old_string: Annotated[str, Field(description="The text to replace; it occurs exactly once, white space and all.")]
    new_string: Annotated[str, Field(description="What to put in its place.")]
    replace_all: Annotated[bool, Field(description="Wherever it occurs; without it, it must occur once.")] = False


class SearchReplace(OnFiles, Writes):
    name: ClassVar[str] = "search_replace"
    description: ClassVar[str] = (
        "Replace text in a file; give enough of the lines around it that it occurs once. Bytes, encoding and line ends "
        "that it does not name stay. An empty old_string makes a new file of new_string."
    )
    Input: ClassVar[type[BaseModel]] = SearchReplaceInput

    async def run(self, sandbox: Sandbox, args: SearchReplaceInput, *, timeout_s: float) -> ToolResult:
        change = Replacement(args.old_string, args.new_string, args.replace_all)
        return await edit(self._files, sandbox, args.file_path, [change], timeout_s=timeout_s)


class CursorWriteInput(Arguments):
    file_path: Annotated[Name, Field(description="The file; a relative path from the working directory.")]
    contents: Annotated[str, Field(description="The whole content.")]


class CursorWrite(OnFiles, Writes):
    name: ClassVar[str] = "write"
    description: ClassVar[str] = "Write a whole file, over an old one too; directories that are missing are made."
    Input: ClassVar[type[BaseModel]] = CursorWriteInput

    async def run(self, sandbox: Sandbox, args: CursorWriteInput, *, timeout_s: float) -> ToolResult:
        return await self._files.create(sandbox, args.file_path, args.contents, timeout_s=timeout_s)


class DeleteFileInput(_Explained):
    target_file: Annotated[Name, Field(description="The file; a relative path from the working directory.")]


class DeleteFile(OnFiles, Writes):
    name: ClassVar[str] = "delete_file"
    description: ClassVar[str] = "Delete a file, or a symlink and not what it names."
    Input: ClassVar[type[BaseModel]] = DeleteFileInput

    async def run(self, sandbox: Sandbox, args: DeleteFileInput, *, timeout_s: float) -> ToolResult:
        return await self._files.remove(sandbox, args.target_file, timeout_s=timeout_s)

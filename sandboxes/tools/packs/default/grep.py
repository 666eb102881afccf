"""The ``grep`` tool: search file contents."""

import re
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from sandboxes.interface import Sandbox
from sandboxes.tools.actions.encodings import decoded
from sandboxes.tools.actions.ripgrep import listed, search
from sandboxes.tools.arguments import Arguments, Name
from sandboxes.tools.rendering import printed, shown_name
from sandboxes.tools.tool import Reads, ToolResult

Context = Annotated[int, Field(ge=0, le=100)]
_MODES = {
    "content": ("--no-heading", "--with-filename", "--max-columns=1000", "--max-columns-preview"),
    "files_with_matches": ("--files-with-matches", "--null"),
    "count": ("--count", "--with-filename"),
}


MOST_LINES = 10_000


class GrepInput(Arguments):
    pattern: Annotated[Name, Field(description="Regular expression in Rust's syntax; escape literal braces: \\{\\}.")]
    path: Annotated[Name | None, Field(description="File or directory; default: the working directory.")] = None
    glob: Annotated[
        Name | None, Field(description='Only files whose path matches, e.g. "*.py", "src/**/*.{js,ts}", "!*_test.go".')
    ] = None
    output_mode: Annotated[
        Literal["content", "files_with_matches", "count"],
        Field(description="Matching lines, paths of matching files, or matching lines counted per file."),
    ] = "files_with_matches"
    ignore_case: Annotated[bool, Field(alias="-i", description="Ignore case.")] = False
    line_numbers: Annotated[bool, Field(alias="-n", description="Line numbers, in content mode.")] = True
    after: Annotated[Context, Field(alias="-A", description="Lines after each match, in content mode.")] = 0
    before: Annotated[Context, Field(alias="-B", description="Lines before each match, in content mode.")] = 0
    around: Annotated[Context, Field(alias="-C", description="Lines on both sides, in content mode.")] = 0
    head_limit: Annotated[int, Field(ge=1, le=10_000, description="At most so many lines of output.")] = 250

    def options(self) -> list[str]:
        options = [*_MODES[self.output_mode], *matching(self.pattern, self.ignore_case)]
        if self.output_mode == "content":
            options.append("--line-number" if self.line_numbers else "--no-line-number")
            options.append(f"--after-context={max(self.after, self.around)}")
            options.append(f"--before-context={max(self.before, self.around)}")
        return options

    @property
    def skipped(self) -> int:
        """The number of output lines to skip before the first that is shown."""
        return 0


_LETTERS = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*(?:\]|\Z)|[^\x00-\x7f]", re.DOTALL)
_NAMED_GROUP = re.compile(r"\(\?P?<[^=!]")


def matching(pattern: str, ignore_case: bool) -> list[str]:
    """Return ripgrep's options for a pattern.

    Lines end with LF or CR LF unless the pattern names CR. Matches span lines if the pattern names LF.
    """
    options = [f"--regexp={as_bytes_too(pattern, ignore_case)}", "--ignore-case" if ignore_case else "--case-sensitive"]
    if "\r" not in pattern and "\\r" not in pattern:
        options.append("--crlf")
    if "\n" in pattern or "\\n" in pattern:
        options.append("--multiline")
    return options


def as_bytes_too(pattern: str, ignore_case: bool = False) -> str:
    """Extend ``pattern`` so that its non-ASCII letters match in UTF-8, Latin-1 and cp1252.

    Within character classes they match only in UTF-8.
    """

    def either(found: re.Match[str]) -> str:
        letter = found[0]
        if letter.isascii() or len(letter) > 1:
            return letter
        letters = {letter, letter.lower(), letter.upper()} if ignore_case else {letter}
        encoded = {each.encode(name, "ignore") for each in letters for name in ("latin-1", "cp1252")}
        plain = "".join(f"|(?-u:\\x{byte[0]:02x})" for byte in sorted(encoded) if len(byte) == 1)
        return f"(?:{letter}{plain})"

    return pattern if pattern.isascii() or _NAMED_GROUP.search(pattern) else _LETTERS.sub(either, pattern)


def shown_match(record: bytes) -> str:
    """Render a line of a file in its own encoding, as the editing tools show it."""
    text, _ = decoded(record.removesuffix(b"\r"))
    return printed(text.encode("utf-8", "surrogateescape"))


class Grep(Reads):
    name: ClassVar[str] = "grep"
    description: ClassVar[str] = (
        "Search file contents with ripgrep, sorted by path. Hidden files are searched; .git, binary files and what "
        ".gitignore excludes are not, unless path names the file. Relative paths begin at the working directory, "
        "whatever bash's directory is. Lines over 1,000 characters are cut. Letters beyond ASCII are found in UTF-8 "
        "and Latin-1 files."
    )
    Input: ClassVar[type[BaseModel]] = GrepInput

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    async def run(self, sandbox: Sandbox, args: GrepInput, *, timeout_s: float) -> ToolResult:
        only_paths = args.output_mode == "files_with_matches"
        found = await search(
            sandbox,
            args.options(),
            args.path or ".",
            globs=(args.glob,) if args.glob else (),
            cwd=sandbox.workdir,
            timeout_s=timeout_s,
            separator=b"\0" if only_paths else b"\n",
        )
        return listed(
            replace(found, records=found.records[args.skipped :]),
            shown_name if only_paths else shown_match,
            none="No more matches." if args.skipped and found.records else "No matches.",
            limit=args.head_limit or MOST_LINES,
            max_chars=self._max_chars,
            narrow="narrow the pattern, path or glob, or raise head_limit",
        )

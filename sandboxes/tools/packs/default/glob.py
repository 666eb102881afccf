"""The ``glob`` tool: find files by name."""

import posixpath
import re
from typing import Annotated, ClassVar

from pydantic import BaseModel, Field

from sandboxes.errors import PathError
from sandboxes.interface import FileKind, Sandbox
from sandboxes.tools.actions.ripgrep import listed, search
from sandboxes.tools.arguments import Arguments, Name
from sandboxes.tools.rendering import shown_name
from sandboxes.tools.tool import Reads, ToolResult

_SPECIAL = re.compile(r"[*?\[{\\]")


class GlobInput(Arguments):
    pattern: Annotated[Name, Field(description='E.g. "*.py" (at any depth), "src/*.c", "**/test_*.{js,ts}".')]
    path: Annotated[Name | None, Field(description="Directory to look in; default: the working directory.")] = None


def split_pattern(pattern: str) -> tuple[str, str]:
    """Split a pattern before its first special character into a directory and the rest: ``/a/b*`` is ``/a/``, ``/b*``.

    Only an absolute pattern, or one that begins with a dot segment, is split.
    """
    if not pattern.startswith(("/", "./", "../")):
        return "", pattern
    special = _SPECIAL.search(pattern)
    plain = pattern[: special.start()] if special else pattern
    directory = plain[: plain.rfind("/") + 1]
    return directory, "/" + pattern[len(directory) :].lstrip("/")


def _depth_option(pattern: str) -> tuple[str, ...]:
    """Return ripgrep's depth limit if the pattern begins at a directory and names each level."""
    levels = pattern.count("/")
    return (f"--max-depth={levels}",) if pattern.startswith("/") and "**" not in pattern and "{" not in pattern else ()


async def _no_files_text(sandbox: Sandbox, args: GlobInput) -> str:
    """Return the text for no matching files; it says if the pattern is the name of a directory."""
    if not _SPECIAL.search(args.pattern):
        try:
            there = await sandbox.stat(posixpath.join(args.path or ".", args.pattern))
        except PathError:
            return "No files."
        if there.kind is FileKind.DIRECTORY:
            inside = shown_name(posixpath.join(args.pattern, "**"))
            return f"No files. {shown_name(args.pattern)} is a directory; for the files in it: {inside}"
    return "No files."


class Glob(Reads):
    name: ClassVar[str] = "glob"
    description: ClassVar[str] = (
        "Find files (not directories) by name, sorted by path. A pattern without a slash matches at any depth, another "
        "from path on. Hidden files are included; .git and directories that .gitignore excludes are not."
    )
    Input: ClassVar[type[BaseModel]] = GlobInput

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    async def run(self, sandbox: Sandbox, args: GlobInput, *, timeout_s: float) -> ToolResult:
        directory, pattern = split_pattern(args.pattern)
        base = posixpath.normpath(posixpath.join(args.path or ".", directory))
        base = "/" + base.lstrip("/") if base.startswith("/") else base
        prefix = b"" if base == "." else base.encode()
        found = await search(
            sandbox,
            ("--files", "--null", *_depth_option(pattern)),
            ".",
            globs=(pattern,),
            cwd=posixpath.join(sandbox.workdir, base),
            timeout_s=timeout_s,
            separator=b"\0",
        )
        return listed(
            found,
            lambda path: shown_name(posixpath.join(prefix, path)),
            none="No files." if found.records else await _no_files_text(sandbox, args),
            limit=self._max_chars,
            max_chars=self._max_chars,
            narrow="narrow the pattern or path",
        )

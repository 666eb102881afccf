"""The ``codebase_search`` tool: find code by its meaning."""

import asyncio
import posixpath
from typing import TYPE_CHECKING, Annotated, ClassVar
from weakref import WeakKeyDictionary

from pydantic import BaseModel, Field, StringConstraints

from sandboxes.errors import PathError
from sandboxes.interface import Sandbox
from sandboxes.search.errors import IndexingFailed
from sandboxes.search.terms import words
from sandboxes.tools.arguments import Arguments, Name
from sandboxes.tools.rendering import fitting, shown_line, shown_name
from sandboxes.tools.tool import Reads, ToolErrorKind, ToolResult

if TYPE_CHECKING:
    from sandboxes.search.index_store import IndexStore
    from sandboxes.search.ranking import Hit
    from sandboxes.search.sandbox_index import IndexedTree, SandboxIndex

Query = Annotated[str, StringConstraints(min_length=1, max_length=4096)]

SNIPPET_LINES = 12
SNIPPET_COLUMNS = 200


class CodebaseSearchInput(Arguments):
    query: Annotated[
        Query, Field(description='What the code does, in plain words or its own, e.g. "where are cookies parsed".')
    ]
    path: Annotated[Name | None, Field(description="Only this file or directory; default: all of the repository.")] = (
        None
    )
    limit: Annotated[int, Field(ge=1, le=50, description="At most so many results.")] = 10


class CodebaseSearch(Reads):
    name: ClassVar[str] = "codebase_search"
    description: ClassVar[str] = (
        "Find code in the repository by its meaning: functions, classes and passages that have to do with the query, "
        "the best first, each with path, lines, name and how it begins. Your own edits are seen. Use grep for exact "
        "strings. Dependencies and generated, binary and very large files are left out."
    )
    Input: ClassVar[type[BaseModel]] = CodebaseSearchInput

    def __init__(self, max_chars: int, index_store: "IndexStore") -> None:
        self._max_chars = max_chars
        self._index_store = index_store
        self._views: WeakKeyDictionary[Sandbox, SandboxIndex] = WeakKeyDictionary()

    async def run(self, sandbox: Sandbox, args: CodebaseSearchInput, *, timeout_s: float) -> ToolResult:
        root = sandbox.workdir
        if not words(args.query):
            return _refused("the query holds no word: say what the code does")
        if root == "/":
            return _refused("the working directory is /, which is no repository: use grep with a path")
        within = _below(root, args.path or ".")
        if within is None:
            return _refused(f"{shown_name(args.path or '')}: outside of {root}, which is all that is indexed; use grep")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._search(sandbox, root, within, args)
        except TimeoutError:
            return ToolResult(
                f"error: the repository was not indexed within {timeout_s:g} s; indexing goes on, so ask again later",
                error_kind=ToolErrorKind.TIMEOUT,
                timed_out=True,
            )
        except IndexingFailed as error:
            return _refused(f"{error}; use grep")

    async def _search(self, sandbox: Sandbox, root: str, within: str, args: CodebaseSearchInput) -> ToolResult:
        view = self._views.get(sandbox)
        if view is None:
            view = self._views[sandbox] = self._index_store.view(sandbox, root)
        tree = await view.refresh()
        if within and not tree.holds(within):
            return _refused(f"{shown_name(args.path or '')}: no file there is indexed; use glob to see what there is")
        hits = await self._index_store.search(args.query, tree.parts, within=within, limit=args.limit)
        return await self._render(sandbox, root, hits, tree)

    async def _render(self, sandbox: Sandbox, root: str, hits: "list[Hit]", tree: "IndexedTree") -> ToolResult:
        paths = sorted({hit.path for hit in hits})
        texts = dict(zip(paths, await asyncio.gather(*(_lines(sandbox, root, path) for path in paths)), strict=True))
        blocks = [_block(hit, texts[hit.path]) for hit in hits]
        kept = blocks[: fitting(blocks, self._max_chars - 500, beside=2)]
        notes = []
        if len(kept) < len(blocks):
            notes.append(f"[{len(blocks) - len(kept)} more results: narrow the query or path, or lower limit]")
        if tree.left_out:
            notes.append(f"[{tree.left_out:,} more files are not indexed, for there are too many: use grep for those]")
        return ToolResult("\n\n".join([*kept, *notes]) or "No results.", truncated=len(kept) < len(blocks))


async def _lines(sandbox: Sandbox, root: str, path: str) -> list[str]:
    """Read the current lines of a file; none if the file is gone."""
    try:
        content = await sandbox.read_file(posixpath.join(root, path), limit=1024 * 1024)
    except PathError:
        return []
    return content.decode("utf-8", "surrogateescape").split("\n")


def _block(hit: "Hit", lines: list[str]) -> str:
    head = f"{shown_name(hit.path)}:{hit.first}-{hit.last}" + (f"  {shown_name(hit.name)}" if hit.name else "")
    last = min(hit.last, hit.first + SNIPPET_LINES - 1)
    shown = [
        f"{number:6}\t{shown_line(line[:SNIPPET_COLUMNS].rstrip())}{'…' * (len(line) > SNIPPET_COLUMNS)}"
        for number, line in enumerate(lines[hit.first - 1 : last], hit.first)
    ]
    return "\n".join([head, *shown])


def _below(root: str, path: str) -> str | None:
    """Return ``path`` relative to ``root``: empty for the root itself, None if it is not below the root."""
    full = posixpath.normpath(posixpath.join(root, path))
    base = posixpath.normpath(root)
    if full == base:
        return ""
    return full.removeprefix(base + "/") if full.startswith(base + "/") else None


def _refused(reason: str) -> ToolResult:
    return ToolResult(f"error: {reason}", error_kind=ToolErrorKind.REFUSED)

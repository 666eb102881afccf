"""Tool packs: the tools of well-known coding agents, each a set of schemas over shared actions.

The page is farm/docs/tools.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandboxes.errors import SpecError
from sandboxes.tools.actions.apply_patch import PatchActions
from sandboxes.tools.actions.files import FileActions
from sandboxes.tools.actions.terminal import TerminalActions
from sandboxes.tools.packs import claude_code, codex, cursor, swe_agent
from sandboxes.tools.packs.default.bash import Bash
from sandboxes.tools.packs.default.codebase_search import CodebaseSearch
from sandboxes.tools.packs.default.edit import Edit
from sandboxes.tools.packs.default.glob import Glob
from sandboxes.tools.packs.default.grep import Grep
from sandboxes.tools.packs.default.submit import Submit
from sandboxes.tools.parse_call import did_you_mean
from sandboxes.tools.tool import Tool

if TYPE_CHECKING:
    from sandboxes.search.index_store import IndexStore


@dataclass(frozen=True, slots=True)
class PackParts:
    """The shared actions that tools are built from.

    ``index_store`` holds the code search indexes; None: the pack has no search by meaning.
    """

    max_chars: int
    terminal: TerminalActions
    files: FileActions
    checked: FileActions
    """File operations that also report a syntax error after an edit, as editors with a linter do."""
    patches: PatchActions
    index_store: IndexStore | None

    @classmethod
    def of(cls, max_chars: int, index_store: IndexStore | None) -> PackParts:
        files = FileActions(max_chars)
        checked = FileActions(max_chars, check_syntax=True)
        return cls(max_chars, TerminalActions(max_chars), files, checked, PatchActions(files), index_store)


Maker = Callable[[PackParts], Tool | None]
"""Builds a tool; returns None if an action that it needs is missing."""


@dataclass(frozen=True, slots=True)
class Pack:
    name: str
    about: str
    makers: Mapping[type[Tool], Maker]

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.makers)


def _search(core: PackParts) -> CodebaseSearch | None:
    return None if core.index_store is None else CodebaseSearch(core.max_chars, core.index_store)


def _cursor_search(core: PackParts) -> cursor.Search | None:
    found = _search(core)
    return None if found is None else cursor.Search(found)


_ALL = (
    Pack(
        "default",
        "the farm's own",
        {
            Bash: lambda core: Bash(core.terminal),
            Edit: lambda core: Edit(core.files),
            Grep: lambda core: Grep(core.max_chars),
            Glob: lambda core: Glob(core.max_chars),
            CodebaseSearch: _search,
            Submit: lambda core: Submit(),
        },
    ),
    Pack(
        "claude-code",
        "those of Claude Code",
        {
            claude_code.ClaudeBash: lambda core: claude_code.ClaudeBash(core.terminal),
            claude_code.BashOutput: lambda core: claude_code.BashOutput(core.terminal),
            claude_code.KillShell: lambda core: claude_code.KillShell(core.terminal),
            claude_code.ClaudeRead: lambda core: claude_code.ClaudeRead(core.files),
            claude_code.ClaudeWrite: lambda core: claude_code.ClaudeWrite(core.files),
            claude_code.ClaudeEdit: lambda core: claude_code.ClaudeEdit(core.files),
            claude_code.MultiEdit: lambda core: claude_code.MultiEdit(core.files),
            claude_code.ClaudeGrep: lambda core: claude_code.ClaudeGrep(core.max_chars),
            claude_code.ClaudeGlob: lambda core: claude_code.ClaudeGlob(core.max_chars),
            claude_code.LS: lambda core: claude_code.LS(core.files),
            claude_code.TodoWrite: lambda core: claude_code.TodoWrite(),
        },
    ),
    Pack(
        "codex",
        "those of the Codex CLI",
        {
            codex.Shell: lambda core: codex.Shell(core.max_chars, core.patches),
            codex.ApplyPatch: lambda core: codex.ApplyPatch(core.patches),
            codex.UpdatePlan: lambda core: codex.UpdatePlan(),
        },
    ),
    Pack(
        "cursor",
        "those of Cursor's agent",
        {
            cursor.Search: _cursor_search,
            cursor.ReadFile: lambda core: cursor.ReadFile(core.files),
            cursor.RunTerminalCommand: lambda core: cursor.RunTerminalCommand(core.terminal),
            cursor.ListDir: lambda core: cursor.ListDir(core.files),
            cursor.GrepSearch: lambda core: cursor.GrepSearch(core.max_chars),
            cursor.FileSearch: lambda core: cursor.FileSearch(core.max_chars),
            cursor.SearchReplace: lambda core: cursor.SearchReplace(core.files),
            cursor.CursorWrite: lambda core: cursor.CursorWrite(core.files),
            cursor.DeleteFile: lambda core: cursor.DeleteFile(core.files),
        },
    ),
    Pack(
        "swe-agent",
        "those of SWE-agent's default configuration",
        {
            swe_agent.SweBash: lambda core: swe_agent.SweBash(core.terminal),
            swe_agent.StrReplaceEditor: lambda core: swe_agent.StrReplaceEditor(core.checked),
            Submit: lambda core: Submit(),
        },
    ),
)
PACKS: Mapping[str, Pack] = {pack.name: pack for pack in _ALL}
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class PackChoice:
    """A pack and the selected tools of it, in the pack's order."""

    pack: Pack
    kinds: tuple[type[Tool], ...]

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.kinds)

    def make(self, core: PackParts) -> list[Tool]:
        return [tool for kind in self.kinds if (tool := self.pack.makers[kind](core)) is not None]


def choose(words: Sequence[str]) -> PackChoice:
    """Select a pack and tools by names: at most one pack (else the default pack), and tools of that pack.

    Tool names select only these tools; names with a leading ``-`` exclude tools. Without tool names all tools of the
    pack are selected. Raises SpecError, whose message suggests the nearest valid name.
    """
    packs = [word for word in words if word in PACKS]
    if len(packs) > 1:
        raise SpecError(f"cannot select tools: {packs[0]!r} and {packs[1]!r} are both packs; name one pack")
    pack = PACKS[packs[0] if packs else DEFAULT]
    named = [word for word in words if word not in PACKS and not word.startswith("-")]
    off = [word[1:] for word in words if word.startswith("-")]
    for name in (*named, *off):
        if name not in pack.tools:
            raise SpecError(_unknown(name, pack))
    if named and off:
        raise SpecError(
            f"cannot select tools: {named[0]!r} includes and '-{off[0]}' excludes a tool; name tools of one kind only"
        )
    kinds = tuple(kind for kind in pack.makers if (not named or kind.name in named) and kind.name not in off)
    if not kinds:
        raise SpecError(f"cannot select tools: all tools of pack {pack.name} are excluded; keep at least one")
    return PackChoice(pack, kinds)


def _unknown(name: str, pack: Pack) -> str:
    elsewhere = [other.name for other in _ALL if name in other.tools]
    if elsewhere:
        return f"{name!r} is not a tool of pack {pack.name}, but of {' and '.join(elsewhere)}; name that pack too"
    near = did_you_mean(name, [*pack.tools, *PACKS])
    return f"no tool named {name!r}{near}; the tools are {', '.join(pack.tools)}, and the packs {', '.join(PACKS)}"

"""A tool call as what it does: runs a script, edits files, looks at paths; pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from farm.audit.shell_parser import Script, read_argv, read_script
from farm.core.rollout import ToolUse
from farm.rewards.tool_metrics import MALFORMED, arguments_of
from sandboxes.tools.tool import ToolErrorKind

TERMINALS = frozenset({"bash", "Bash", "BashOutput", "KillShell", "shell", "run_terminal_cmd"})
EDITORS = frozenset(
    {
        *("str_replace_based_edit_tool", "str_replace_editor", "Write", "Edit", "MultiEdit"),
        *("apply_patch", "search_replace", "write", "delete_file"),
    }
)
LOOKERS = frozenset(
    {
        *("grep", "glob", "codebase_search", "Read", "Grep", "Glob", "LS"),
        *("read_file", "list_dir", "grep_search", "file_search"),
    }
)
OTHERS = frozenset({"submit", "answer", "TodoWrite", "update_plan"})
"""Of neither kind: they touch nothing."""

_NOT_RUN = frozenset({*MALFORMED, ToolErrorKind.OVER_LIMIT})
_OVERWROTE = "Overwrote "
"""So the result begins where a file was there."""
_CREATES = frozenset({"create", "Write", "write"})
_PATHS = (
    *("path", "file_path", "target_file", "relative_workspace_path", "target_directory", "workdir"),
    *("glob", "include_pattern"),
)
_GLOBBERS = frozenset({"glob", "Glob"})
"""Their pattern is a path."""
_PATCHED = re.compile(r"^\*\*\* (?:(Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_MOST_FILES = 200


@dataclass(frozen=True, slots=True)
class EditedPath:
    """``existing``: it was there before, as far as the call shows."""

    path: str
    existing: bool


@dataclass(frozen=True, slots=True)
class ToolAction:
    """``edited`` is empty where the edit failed."""

    script: Script
    edited: tuple[EditedPath, ...] = ()
    looked: tuple[str, ...] = ()
    terminal: bool = False


def classify_call(use: ToolUse, most: int) -> ToolAction | None:
    """None where nothing was run. Of a script ``most`` characters are read."""
    if use.error_kind in _NOT_RUN:
        return None
    given = arguments_of(use)
    keys = (*_PATHS, "pattern") if use.name in _GLOBBERS else _PATHS
    looked = tuple(value for key in keys if isinstance(value := given.get(key), str))
    if use.name in TERMINALS:
        patched = tuple(_patched(_argv_text(given))) if use.name == "shell" and not use.is_error else ()
        return ToolAction(_script(given, most), patched, looked, terminal=not patched)
    if use.name in EDITORS and given.get("command") != "view":
        edited = () if use.is_error else tuple(_edited(use, given))
        return ToolAction(Script(), edited, looked)
    return ToolAction(Script(), (), looked)


def _script(given: Mapping[str, Any], most: int) -> Script:
    command = given.get("command")
    if isinstance(command, str):
        return read_script(command, most)
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        return read_argv(command, most)
    return Script()


def _argv_text(given: Mapping[str, Any]) -> str:
    command = given.get("command")
    words = command if isinstance(command, list) else []
    text = "\n".join(word for word in words if isinstance(word, str))
    return text if "*** Begin Patch" in text and "apply" in text else ""


def _edited(use: ToolUse, given: Mapping[str, Any]) -> Iterator[EditedPath]:
    if use.name == "apply_patch":
        yield from _patched(str(given.get("input", "")))
        return
    creates = (use.name in _CREATES or given.get("command") in _CREATES) and not use.result.startswith(_OVERWROTE)
    for key in ("path", "file_path", "target_file"):
        if isinstance(path := given.get(key), str):
            yield EditedPath(path, existing=not creates)


def _patched(text: str) -> Iterator[EditedPath]:
    for number, found in enumerate(_PATCHED.finditer(text)):
        if number == _MOST_FILES:
            return
        yield EditedPath(found[2].strip(), existing=found[1] in ("Update", "Delete"))

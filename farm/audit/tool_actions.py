"""Classification of a tool call by its actions: it runs a script, edits files or reads paths; pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from farm.audit.shell_parser import Script, parse_argv, parse_script
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
READERS = frozenset(
    {
        *("grep", "glob", "codebase_search", "Read", "Grep", "Glob", "LS"),
        *("read_file", "list_dir", "grep_search", "file_search"),
    }
)
INERT_TOOLS = frozenset({"submit", "answer", "TodoWrite", "update_plan"})
"""Tools that touch nothing in the sandbox."""

_NOT_RUN = frozenset({*MALFORMED, ToolErrorKind.OVER_LIMIT})
_OVERWROTE_FILE = "Overwrote "
"""Start of the result of a call that overwrote an existing file."""
_CREATES = frozenset({"create", "Write", "write"})
_PATHS = (
    *("path", "file_path", "target_file", "relative_workspace_path", "target_directory", "workdir"),
    *("glob", "include_pattern"),
)
_PATTERN_IS_PATH = frozenset({"glob", "Glob"})
"""Tools whose argument ``pattern`` is a path."""
_PATCH_FILE = re.compile(r"^\*\*\* (?:(Add|Update|Delete) File|Move to): (.+)$", re.MULTILINE)
_MAX_PATCHED_FILES = 200


@dataclass(frozen=True, slots=True)
class EditedPath:
    """A path that a call changes. ``existing``: the file existed before, as far as the call shows."""

    path: str
    existing: bool


@dataclass(frozen=True, slots=True)
class ToolAction:
    """The actions of a tool call. ``edits`` is empty if the edit failed."""

    script: Script
    edits: tuple[EditedPath, ...] = ()
    read_paths: tuple[str, ...] = ()
    terminal: bool = False


def classify_call(use: ToolUse, max_chars: int) -> ToolAction | None:
    """Return the actions of a tool call; None if it was not executed. Scripts are parsed up to ``max_chars``."""
    if use.error_kind in _NOT_RUN:
        return None
    arguments = arguments_of(use)
    keys = (*_PATHS, "pattern") if use.name in _PATTERN_IS_PATH else _PATHS
    read_paths = tuple(value for key in keys if isinstance(value := arguments.get(key), str))
    if use.name in TERMINALS:
        patched = tuple(_edits_in_patch(_argv_text(arguments))) if use.name == "shell" and not use.is_error else ()
        return ToolAction(_script(arguments, max_chars), patched, read_paths, terminal=not patched)
    if use.name in EDITORS and arguments.get("command") != "view":
        edits = () if use.is_error else tuple(_edits_of_call(use, arguments))
        return ToolAction(Script(), edits, read_paths)
    return ToolAction(Script(), (), read_paths)


def _script(arguments: Mapping[str, Any], max_chars: int) -> Script:
    command = arguments.get("command")
    if isinstance(command, str):
        return parse_script(command, max_chars)
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        return parse_argv(command, max_chars)
    return Script()


def _argv_text(arguments: Mapping[str, Any]) -> str:
    command = arguments.get("command")
    words = command if isinstance(command, list) else []
    text = "\n".join(word for word in words if isinstance(word, str))
    return text if "*** Begin Patch" in text and "apply" in text else ""


def _edits_of_call(use: ToolUse, arguments: Mapping[str, Any]) -> Iterator[EditedPath]:
    if use.name == "apply_patch":
        yield from _edits_in_patch(str(arguments.get("input", "")))
        return
    creates = (use.name in _CREATES or arguments.get("command") in _CREATES) and not use.result.startswith(
        _OVERWROTE_FILE
    )
    for key in ("path", "file_path", "target_file"):
        if isinstance(path := arguments.get(key), str):
            yield EditedPath(path, existing=not creates)


def _edits_in_patch(text: str) -> Iterator[EditedPath]:
    for number, match in enumerate(_PATCH_FILE.finditer(text)):
        if number == _MAX_PATCHED_FILES:
            return
        yield EditedPath(match[2].strip(), existing=match[1] in ("Update", "Delete"))

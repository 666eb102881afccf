"""The changes of files that calls of editing tools asked for, for the tools of all packs; pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from farm.core.rollout import ToolUse, Turn
from farm.schemas.story import StoryEdit

MOST_EDITS = 500
MOST_EDIT_CHARS = 8_000

_PATHS = ("path", "file_path", "target_file")
_OLD = ("old_str", "old_string")
_NEW = ("new_str", "new_string", "file_text", "insert_text", "content", "contents")
_PATCHES = {"apply_patch": ("input", "patch")}


def edits_of(turns: Sequence[Turn]) -> tuple[StoryEdit, ...]:
    """Return the edits of these turns in order, at most the latest ``MOST_EDITS``."""
    found = [
        StoryEdit(
            position=at,
            call=call,
            path=path[:MOST_EDIT_CHARS],
            old=old[:MOST_EDIT_CHARS],
            new=new[:MOST_EDIT_CHARS],
            is_error=use.is_error,
        )
        for at, turn in enumerate(turns)
        for call, use in enumerate(turn.tool_uses)
        for path, old, new in _edits(use)
    ]
    return tuple(found[-MOST_EDITS:])


def _edits(use: ToolUse) -> Iterator[tuple[str, str, str]]:
    """Yield path, old and new text of each edit of a call; none if it is no call of an editing tool."""
    try:
        arguments = json.loads(use.arguments)
    except (ValueError, RecursionError):
        return
    if not isinstance(arguments, dict):
        return
    patch = _text(arguments, _PATCHES.get(use.name, ()))
    if patch:
        yield "", "", patch
    path = _text(arguments, _PATHS)
    edits = arguments.get("edits", [arguments])
    for edit in edits if path and isinstance(edits, list) else ():
        if isinstance(edit, dict) and any(isinstance(edit.get(name), str) for name in (*_OLD, *_NEW)):
            yield path, _text(edit, _OLD), _text(edit, _NEW)


def _text(fields: dict[str, Any], names: Sequence[str]) -> str:
    return next((fields[name] for name in names if isinstance(fields.get(name), str)), "")

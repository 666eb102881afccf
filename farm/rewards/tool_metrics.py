"""Raw components of a policy's tool use: effort and misuse; pure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from farm.core.nesting_limit import read_json
from farm.core.rollout import ToolUse, Turn, TurnKind
from sandboxes.tools.parse_call import MOST_ARGUMENT_CHARS
from sandboxes.tools.tool import ToolErrorKind

TODO_LISTS = {"TodoWrite": "todos", "update_plan": "plan"}
"""Tools that record a to-do list → the argument with the list."""

MALFORMED = (ToolErrorKind.UNKNOWN_TOOL, ToolErrorKind.BAD_JSON, ToolErrorKind.BAD_ARGUMENTS)


def count_effort(turns: Sequence[Turn]) -> Mapping[str, float]:
    """Return the counts of effort. A summary is no turn, but its tokens count."""
    return {
        "effort_turns": float(sum(turn.kind is TurnKind.TURN for turn in turns)),
        "effort_calls": float(sum(len(turn.tool_uses) for turn in turns)),
        "effort_prompt_tokens": float(sum(turn.prompt_tokens for turn in turns)),
        "effort_completion_tokens": float(sum(turn.completion_tokens for turn in turns)),
    }


def count_misuse(turns: Sequence[Turn]) -> Mapping[str, float]:
    uses = [use for turn in turns for use in turn.tool_uses]
    kinds = {f"misuse_{kind}": sum(use.error_kind == kind for use in uses) for kind in MALFORMED}
    figures = {
        **kinds,
        "misuse_malformed": sum(kinds.values()),
        "misuse_over_limit": sum(use.error_kind == ToolErrorKind.OVER_LIMIT for use in uses),
        "misuse_repeated": sum(_repeats(before, use) for before, use in pairwise(uses)),
        "misuse_unfinished_todos": _unfinished_todos(uses),
    }
    return {name: float(value) for name, value in figures.items()}


def _repeats(before: ToolUse, use: ToolUse) -> bool:
    """Return True if a call repeats the call before it; polling of a job with a new result is no repetition."""
    if (before.name, before.arguments) != (use.name, use.arguments):
        return False
    return before.result == use.result or not _polls_job(use)


def _polls_job(use: ToolUse) -> bool:
    return use.name == "BashOutput" or '"job"' in use.arguments


def _unfinished_todos(uses: Sequence[ToolUse]) -> int:
    """Return the number of unfinished items in the last to-do list."""
    last = next((use for use in reversed(uses) if use.name in TODO_LISTS and not use.is_error), None)
    if last is None:
        return 0
    items = arguments_of(last).get(TODO_LISTS[last.name])
    if not isinstance(items, list):
        return 0
    return sum(isinstance(item, dict) and item.get("status") != "completed" for item in items)


def arguments_of(use: ToolUse) -> Mapping[str, Any]:
    """Return the arguments of a call; empty if they are not a JSON object or too long."""
    if len(use.arguments) > MOST_ARGUMENT_CHARS:
        return {}
    try:
        arguments = read_json(use.arguments)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}

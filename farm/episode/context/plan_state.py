"""The plan of the policy, which a fresh context takes over from the context before it."""

from collections.abc import Iterator, Sequence

from farm.core.rollout import ToolUse, Turn, TurnKind
from farm.episode.record_limits import shorten
from farm.rewards.tool_metrics import TODO_LISTS, arguments_of

MOST_PLAN_CHARS = 16_000
_BEGIN, _END = "<plan>", "</plan>"


def plan_state(turns: Sequence[Turn]) -> str:
    """Return the last plan of the policy; "" if there is none.

    A plan is a list that a to-do tool has recorded, or the text between ``<plan>`` and ``</plan>`` in a message.
    """
    for turn in reversed(turns):
        uses = turn.tool_uses if turn.kind is TurnKind.TURN else ()  # the calls of a summary were not run
        for use in reversed(uses):
            if use.name in TODO_LISTS and not use.is_error:
                return shorten("\n".join(_items(use)), MOST_PLAN_CHARS)
        end = turn.content.rfind(_END)
        begin = turn.content.rfind(_BEGIN, 0, max(end, 0))
        if begin >= 0:
            return shorten(turn.content[begin + len(_BEGIN) : end].strip(), MOST_PLAN_CHARS)
    return ""


def _items(use: ToolUse) -> Iterator[str]:
    items = arguments_of(use).get(TODO_LISTS[use.name])
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield f"[{item.get('status')}] {item.get('content', item.get('step'))}"

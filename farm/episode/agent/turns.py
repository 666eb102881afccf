"""A recorded request of an agent as a turn of the record."""

from collections.abc import Mapping
from dataclasses import replace

from farm.core.rollout import Turn
from farm.episode.turn_record import TimedReply, record_turn
from farm.model_proxy import RecordedReply
from sandboxes.tools.tool import ToolResult

NOT_SENT = "The agent sent no result of this call."


def turn_of(record: RecordedReply, results: Mapping[str, str], *, index: int, context: int) -> Turn:
    """Return the turn of a reply. ``results``: what the agent sent as results of calls, by the id of the call."""
    known = [results.get(call.id) for call in record.reply.tool_calls]
    turn = record_turn(
        TimedReply(record.reply, record.started_at, record.model_s),
        [None if content is None else ToolResult(content=content) for content in known],
        NOT_SENT,
    )
    return replace(turn, index=index, told=record.added, context=context)

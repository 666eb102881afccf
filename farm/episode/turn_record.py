"""The record of one turn, and the metrics of all turns of a conversation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.core.rollout import BranchPoint, ToolUse, Turn, TurnKind
from farm.policy.base import Reply, ToolCall
from farm.rewards.tool_metrics import MALFORMED
from sandboxes.tools.packs import PACKS
from sandboxes.tools.tool import ToolErrorKind, ToolResult

TOOLS = frozenset(tool for pack in PACKS.values() for tool in pack.tools)
OTHER_TOOLS = "(others)"
OK = "ok"


@dataclass(frozen=True, slots=True)
class TimedReply:
    """A reply, the Unix time of its request, and the seconds that it took."""

    reply: Reply
    started_at: float
    model_s: float


def count(turns: Sequence[Turn]) -> Mapping[str, float]:
    """Return the metrics of a conversation, with malformed calls by kind."""
    uses = [use for turn in turns for use in turn.tool_uses]
    summaries = [turn for turn in turns if turn.kind is TurnKind.SUMMARY]
    figures = {
        "turns": len(turns) - len(summaries),
        "summaries": len(summaries),
        "summary_tokens": sum(turn.completion_tokens for turn in summaries),
        "tool_calls": len(uses),
        "tool_failures": sum(use.is_error for use in uses),
        "tool_timeouts": sum(use.timed_out for use in uses),
        "calls_over_limit": sum(use.error_kind == ToolErrorKind.OVER_LIMIT for use in uses),
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "completion_tokens": sum(turn.completion_tokens for turn in turns),
    }
    malformed = {f"malformed_{kind}": sum(use.error_kind == kind for use in uses) for kind in MALFORMED}
    return {name: float(value) for name, value in (figures | malformed).items()}


def count_outcomes(turns: Sequence[Turn]) -> Mapping[tuple[str, str], int]:
    """Return the number of calls by tool and outcome. Names that no pack has share one name, because a policy may
    invent any.
    """
    uses = (use for turn in turns for use in turn.tool_uses)
    return Counter((use.name if use.name in TOOLS else OTHER_TOOLS, use.error_kind or OK) for use in uses)


def record_turn(timed: TimedReply, results: Sequence[ToolResult | None], absent: str) -> Turn:
    """Return the record of a reply. ``absent`` stands for the result of a call without one."""
    reply = timed.reply
    return Turn(
        index=0,
        content=reply.content,
        reasoning=reply.reasoning,
        tool_uses=tuple(_use(call, result, absent) for call, result in zip(reply.tool_calls, results, strict=True)),
        finish_reason=reply.finish_reason,
        request_id=reply.request_id,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        started_at=timed.started_at,
        model_s=timed.model_s,
        tools_s=0.0,
    )


def _use(call: ToolCall, result: ToolResult | None, absent: str) -> ToolUse:
    known = result or ToolResult(content=absent)
    return ToolUse(
        id=call.id,
        name=call.name,
        arguments=call.arguments,
        result=known.content,
        is_error=known.error_kind is not None,
        error_kind=None if known.error_kind is None else str(known.error_kind),
        exit_code=known.exit_code,
        timed_out=known.timed_out,
        truncated=known.truncated,
        duration_s=known.duration_s,
    )


def is_before(turn: Turn, point: BranchPoint) -> bool:
    """Return True if a turn is among those that the branches of ``point`` share.

    A summary that follows the last shared turn is not: each branch writes its own.
    """
    return turn.index + (turn.kind is TurnKind.SUMMARY) < point.turn


def count_shared(turns: Sequence[Turn], branches: Sequence[BranchPoint], rollout_id: str) -> Mapping[str, float]:
    """Return the metrics of what a rollout shares; none without branch points.

    ``tokens_held_elsewhere``: the sampled tokens that the loss masks of other rollouts cover.
    """
    if not branches:
        return {}
    shared = [turn for turn in turns if is_before(turn, branches[-1])]
    held = [turn for turn in shared if holder_of(turn, branches) != rollout_id]
    return {
        "shared_turns": float(sum(turn.kind is TurnKind.TURN for turn in shared)),
        "tokens_held_elsewhere": float(sum(turn.completion_tokens for turn in held)),
    }


def holder_of(turn: Turn, branches: Sequence[BranchPoint]) -> str:
    """Return the id of the rollout whose loss mask covers a turn; "" if the turn is shared with no other rollout."""
    return next((point.holder for point in branches if is_before(turn, point)), "")

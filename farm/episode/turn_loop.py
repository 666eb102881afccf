"""The turn loop: policy ⇄ tools until the policy is done or a limit is reached."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from farm.core.rollout import StopReason, ToolUse, Turn
from farm.core.run import EpisodeLimits
from farm.core.task import Task
from farm.episode.events import EventKind
from farm.episode.journal import EpisodeJournal, JournalState, RecordedTurn, TurnJournal
from farm.episode.phase_times import Stopwatch
from farm.episode.prompts import AFTER_SUBMIT, UNFINISHED, assistant_message, tool_messages
from farm.episode.tool_calls import MOST_CALLS, run_calls
from farm.policy.base import Message, Policy, PolicyError, Reply, ToolCall
from farm.rewards.tool_metrics import MALFORMED
from sandboxes.interface import Sandbox
from sandboxes.tools import Toolset
from sandboxes.tools.packs.answer import Answer
from sandboxes.tools.tool import ToolErrorKind, ToolResult

SILENT_PART = 0.5
"""An endpoint that sends nothing to anybody for so much of the agent's time, up to its end, is out."""


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits of the turn loop: the task's own, under the caps of the order. Tokens are counted after each turn."""

    agent_s: float
    tool_s: float
    max_turns: int
    max_tokens: int | None
    calls_per_turn: int = MOST_CALLS

    @staticmethod
    def of(task: Task, limits: EpisodeLimits) -> "LoopLimits":
        return LoopLimits(
            agent_s=min(task.agent_timeout_s, limits.agent_s or task.agent_timeout_s),
            tool_s=limits.tool_s,
            max_turns=min(task.max_turns, limits.max_turns or task.max_turns),
            max_tokens=limits.max_tokens,
            calls_per_turn=task.retrieval.calls_per_turn if task.retrieval else MOST_CALLS,
        )


class TurnLoop:
    """One conversation. ``turns`` and ``replies`` hold what happened also when ``run`` raised or was cut short.

    It is written to ``journal``, and goes on where that one's ``past`` ends: as if it had never been cut off.
    """

    def __init__(
        self,
        policy: Policy,
        toolset: Toolset,
        bounds: LoopLimits,
        opening: Sequence[Message],
        *,
        watch: Stopwatch,
        tell: Callable[[EventKind, int, Turn | None], None],
        journal: EpisodeJournal,
    ) -> None:
        self.turns: list[Turn] = []
        self.replies: list[Reply] = []
        self._policy = policy
        self._toolset = toolset
        self._schemas = toolset.schemas()
        self._bounds = bounds
        self._messages: list[Message] = list(opening)
        self._watch = watch
        self._tell = tell
        self._journal = journal
        self._cut: RecordedTurn | None = None
        self._told = ""

    async def run(self, sandbox: Sandbox) -> StopReason:
        """Why the conversation ended. Raises PolicyError or SandboxGone."""
        past = self._journal.past
        spent_s = past.spent_s - past.began_at_s if past else 0.0
        if past is not None:
            await self.recall(past)
        stop = past.stop if past else None
        if stop is None:
            stop = await self._converse(sandbox, asyncio.timeout(self._bounds.agent_s - spent_s))
            self._journal.record_stop(stop)
        return stop

    async def run_step(self, sandbox: Sandbox, opening: Sequence[Message], agent_s: float) -> StopReason:
        """In a new context, with time of its own; turns and tokens are counted on. Raises as ``run``."""
        self._messages = list(opening)
        self._told = str(opening[-1]["content"])
        self._bounds = replace(self._bounds, agent_s=agent_s)
        return await self._converse(sandbox, asyncio.timeout(agent_s))

    async def recall(self, past: JournalState) -> None:
        """Be where ``past`` ends; its last turn may have calls that are yet to end. Raises PolicyError."""
        over, cut = (past.turns[:-1], past.turns[-1:]) if past.stop is None else (past.turns, [])
        for turn in over:
            await self._policy.replay(self._messages, self._schemas)
            self.replies.append(turn.reply)
            results = [turn.results.get(call) for call in range(len(turn.reply.tool_calls))]
            self._finish(turn.reply, results, turn.started_at, turn.model_s, turn.tools_s)
            self._say(turn.reply, results)
        for turn in past.turns:
            self._watch.add("policy_s", turn.model_s)
            self._watch.add("tools_s", turn.tools_s)
        self._cut = cut[0] if cut else None

    async def _converse(self, sandbox: Sandbox, deadline: asyncio.Timeout) -> StopReason:
        try:
            async with deadline:
                for index in range(len(self.turns), self._bounds.max_turns):
                    stop = await self._take_turn(index, sandbox)
                    if stop is not None:
                        return stop
                return StopReason.MAX_TURNS
        except TimeoutError:
            if not deadline.expired():
                raise
            outage = self._policy.unavailable_reason
            if outage is None and self._policy.silent_s >= SILENT_PART * self._bounds.agent_s:
                outage = f"it had sent nothing for {self._policy.silent_s:.0f} s"
            if outage:
                raise PolicyError(
                    f"the endpoint was out when the agent's {self._bounds.agent_s:g} s ended: {outage}",
                    retryable=True,
                ) from None
            return StopReason.AGENT_TIMEOUT

    async def _take_turn(self, index: int, sandbox: Sandbox) -> StopReason | None:
        self._tell(EventKind.TURN_STARTED, index, None)
        cut, self._cut = self._cut, None
        if cut is not None:
            await self._policy.replay(self._messages, self._schemas)
            reply, started_at, model_s, spent_s = cut.reply, cut.started_at, cut.model_s, cut.tools_s
        else:
            started_at, asked, spent_s = time.time(), time.monotonic(), 0.0
            with self._watch.phase("policy_s"):
                reply = await self._policy.reply(self._messages, self._schemas)
            model_s = time.monotonic() - asked
            if reply.silent:
                return reply.stop
            self._journal.record_reply(reply, started_at, model_s)
        self.replies.append(reply)
        results = [cut.results.get(call) if cut else None for call in range(len(reply.tool_calls))]
        replied = time.monotonic() - spent_s
        try:
            if reply.stop is None:
                with self._watch.phase("tools_s"):
                    await run_calls(
                        self._toolset,
                        sandbox,
                        reply.tool_calls,
                        results,
                        TurnJournal(self._journal, index, cut),
                        timeout_s=self._bounds.tool_s,
                        most=self._bounds.calls_per_turn,
                    )
        finally:
            self._finish(reply, results, started_at, model_s, time.monotonic() - replied)
        self._tell(EventKind.TURN_FINISHED, index, self.turns[index])
        self._say(reply, results)
        return self._stop_after(reply, results)

    def _finish(
        self, reply: Reply, results: Sequence[ToolResult | None], started_at: float, model_s: float, tools_s: float
    ) -> None:
        turn = _record(len(self.turns), reply, results, started_at, model_s, tools_s)
        self.turns.append(replace(turn, told=self._told))
        self._told = ""

    def _say(self, reply: Reply, results: Sequence[ToolResult | None]) -> None:
        self._messages.append(assistant_message(reply))
        self._messages.extend(tool_messages(reply, results))

    def _stop_after(self, reply: Reply, results: Sequence[ToolResult | None]) -> StopReason | None:
        """A reply without a tool call ends the work, unless the engine cut it short; so does an answer of any form."""
        if reply.stop is not None:
            return reply.stop
        answered = Answer.name in self._toolset.names and any(call.name == Answer.name for call in reply.tool_calls)
        if answered or any(result is not None and result.done for result in results):
            return StopReason.AGENT_DONE
        spent = sum(turn.completion_tokens for turn in self.turns)
        if self._bounds.max_tokens is not None and spent >= self._bounds.max_tokens:
            return StopReason.MAX_TOKENS
        if not reply.tool_calls:
            return StopReason.MAX_TOKENS if reply.finish_reason == "length" else StopReason.AGENT_DONE
        return None


def count(turns: Sequence[Turn]) -> Mapping[str, float]:
    """The figures of a conversation, malformed calls by kind."""
    uses = [use for turn in turns for use in turn.tool_uses]
    figures = {
        "turns": len(turns),
        "tool_calls": len(uses),
        "tool_failures": sum(use.is_error for use in uses),
        "tool_timeouts": sum(use.timed_out for use in uses),
        "calls_over_limit": sum(use.error_kind == ToolErrorKind.OVER_LIMIT for use in uses),
        "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        "completion_tokens": sum(turn.completion_tokens for turn in turns),
    }
    malformed = {f"malformed_{kind}": sum(use.error_kind == kind for use in uses) for kind in MALFORMED}
    return {name: float(value) for name, value in (figures | malformed).items()}


def _record(
    index: int,
    reply: Reply,
    results: Sequence[ToolResult | None],
    started_at: float,
    model_s: float,
    tools_s: float,
) -> Turn:
    submitted = any(result is not None and result.done for result in results)
    return Turn(
        index=index,
        content=reply.content,
        reasoning=reply.reasoning,
        tool_uses=tuple(
            _use(call, result, AFTER_SUBMIT if submitted else UNFINISHED)
            for call, result in zip(reply.tool_calls, results, strict=True)
        ),
        finish_reason=reply.finish_reason,
        request_id=reply.request_id,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        started_at=started_at,
        model_s=model_s,
        tools_s=tools_s,
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

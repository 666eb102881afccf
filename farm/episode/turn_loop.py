"""The turn loop: policy and tools in turn until the policy is done or a limit is reached."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farm.core.rollout import StopReason, ToolUse, Turn
from farm.core.run import EpisodeLimits
from farm.core.task import Task
from farm.episode.events import EventKind
from farm.episode.journal import EpisodeJournal, JournalState, RecordedTurn, TurnJournal
from farm.episode.phase_times import AgentDeadline, Stopwatch
from farm.episode.prompts import AFTER_SUBMIT, UNFINISHED, assistant_message, tool_messages
from farm.episode.tool_calls import MOST_CALLS, CallLimits, run_calls
from farm.policy.base import Message, Policy, PolicyError, Reply, ToolCall
from farm.rewards.tool_metrics import MALFORMED
from sandboxes.interface import Sandbox
from sandboxes.tools import Toolset
from sandboxes.tools.packs.default.answer import Answer
from sandboxes.tools.tool import ToolErrorKind, ToolResult

SILENT_PART = 0.5
"""An endpoint is out if it sends nothing at all for this part of the agent's time, up to its end."""

OnTurn = Callable[[EventKind, int, Turn | None], None]


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """Limits of the turn loop: the task's own, under the caps of the assignment. Tokens are counted after each turn."""

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


@dataclass(frozen=True, slots=True)
class Conversation:
    """The part of an episode that its steps share: its participants and all turns so far.

    ``turns`` and ``replies`` hold what happened also if the episode raised or was interrupted.
    """

    policy: Policy
    toolset: Toolset
    journal: EpisodeJournal
    watch: Stopwatch
    on_turn: OnTurn
    turns: list[Turn] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    @property
    def has_acted(self) -> bool:
        """True if the policy has called a tool."""
        return any(turn.tool_uses for turn in self.turns)


class TurnLoop:
    """The conversation of one step, in a context of its own. Turns and tokens of earlier steps count.

    It is written to the journal, and goes on after the journal's ``past`` as if it had never been interrupted.
    ``instruction``: the message that opened the step, for the record; empty for the first step.
    """

    def __init__(
        self, conversation: Conversation, limits: LoopLimits, opening: Sequence[Message], *, instruction: str = ""
    ) -> None:
        self._conversation = conversation
        self._policy = conversation.policy
        self._journal = conversation.journal
        self._watch = conversation.watch
        self._schemas = conversation.toolset.schemas()
        self._limits = limits
        self._messages: list[Message] = list(opening)
        self._interrupted: RecordedTurn | None = None
        self._instruction = instruction

    async def run(self, sandbox: Sandbox) -> StopReason:
        """Return why the conversation ended. Raises PolicyError or SandboxGone."""
        past = self._journal.past
        spent_s = past.spent_s - past.began_at_s if past else 0.0
        if past is not None:
            await self.recall(past)
        stop = past.stop if past else None
        if stop is None:
            deadline = AgentDeadline(self._limits.agent_s - spent_s, lambda: self._policy.held_s)
            stop = await self._converse(sandbox, deadline)
            self._journal.record_stop(stop)
        return stop

    async def recall(self, past: JournalState) -> None:
        """Restore the state at the end of ``past``, whose last turn may have open calls. Raises PolicyError."""
        ended, open_turns = (past.turns[:-1], past.turns[-1:]) if past.stop is None else (past.turns, [])
        for turn in ended:
            await self._policy.replay(self._messages, self._schemas)
            self._conversation.replies.append(turn.reply)
            results = [turn.results.get(call) for call in range(len(turn.reply.tool_calls))]
            self._finish(turn.reply, results, turn.started_at, turn.model_s, turn.tools_s)
            self._add_messages(turn.reply, results)
        for turn in past.turns:
            self._watch.add("policy_s", turn.model_s)
            self._watch.add("tools_s", turn.tools_s)
        self._interrupted = open_turns[0] if open_turns else None

    async def _converse(self, sandbox: Sandbox, deadline: AgentDeadline) -> StopReason:
        try:
            async with deadline:
                for index in range(len(self._conversation.turns), self._limits.max_turns):
                    stop = await self._take_turn(index, sandbox)
                    if stop is not None:
                        return stop
                return StopReason.MAX_TURNS
        except TimeoutError:
            if not deadline.expired():
                raise
            outage = self._policy.unavailable_reason
            if outage is None and self._policy.silent_s >= SILENT_PART * self._limits.agent_s:
                outage = f"it had sent nothing for {self._policy.silent_s:.0f} s"
            if outage:
                raise PolicyError(
                    f"the endpoint was out when the agent's {self._limits.agent_s:g} s ended: {outage}",
                    retryable=True,
                ) from None
            return StopReason.AGENT_TIMEOUT

    async def _take_turn(self, index: int, sandbox: Sandbox) -> StopReason | None:
        self._conversation.on_turn(EventKind.TURN_STARTED, index, None)
        past, self._interrupted = self._interrupted, None
        if past is not None:
            await self._policy.replay(self._messages, self._schemas)
            reply, started_at, model_s, spent_s = past.reply, past.started_at, past.model_s, past.tools_s
        else:
            started_at, requested, held_s, spent_s = time.time(), time.monotonic(), self._policy.held_s, 0.0
            with self._watch.phase("policy_s"):
                reply = await self._policy.reply(self._messages, self._schemas)
            held_s = self._policy.held_s - held_s
            if held_s:
                self._watch.add("held_s", held_s)
            model_s = time.monotonic() - requested - held_s
            if reply.silent:
                return reply.stop
            self._journal.record_reply(reply, started_at, model_s)
        self._conversation.replies.append(reply)
        results = [past.results.get(call) if past else None for call in range(len(reply.tool_calls))]
        replied = time.monotonic() - spent_s
        try:
            if reply.stop is None:
                with self._watch.phase("tools_s"):
                    await run_calls(
                        self._conversation.toolset,
                        sandbox,
                        reply.tool_calls,
                        results,
                        CallLimits(self._limits.tool_s, self._limits.calls_per_turn),
                        TurnJournal(self._journal, index, past),
                    )
        finally:
            self._finish(reply, results, started_at, model_s, time.monotonic() - replied)
        self._conversation.on_turn(EventKind.TURN_FINISHED, index, self._conversation.turns[index])
        self._add_messages(reply, results)
        return self._stop_after(reply, results)

    def _finish(
        self, reply: Reply, results: Sequence[ToolResult | None], started_at: float, model_s: float, tools_s: float
    ) -> None:
        turn = _record(len(self._conversation.turns), reply, results, started_at, model_s, tools_s)
        self._conversation.turns.append(replace(turn, told=self._instruction))
        self._instruction = ""

    def _add_messages(self, reply: Reply, results: Sequence[ToolResult | None]) -> None:
        self._messages.append(assistant_message(reply))
        self._messages.extend(tool_messages(reply, results))

    def _stop_after(self, reply: Reply, results: Sequence[ToolResult | None]) -> StopReason | None:
        """Return why the work ends with ``reply``: a complete reply without a tool call, an answer, or a limit."""
        if reply.stop is not None:
            return reply.stop
        has_answer = Answer.name in self._conversation.toolset.names
        answered = has_answer and any(call.name == Answer.name for call in reply.tool_calls)
        if answered or any(result is not None and result.done for result in results):
            return StopReason.AGENT_DONE
        spent = sum(turn.completion_tokens for turn in self._conversation.turns)
        if self._limits.max_tokens is not None and spent >= self._limits.max_tokens:
            return StopReason.MAX_TOKENS
        if not reply.tool_calls:
            return StopReason.MAX_TOKENS if reply.finish_reason == "length" else StopReason.AGENT_DONE
        return None


def count(turns: Sequence[Turn]) -> Mapping[str, float]:
    """Return the metrics of a conversation, with malformed calls by kind."""
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

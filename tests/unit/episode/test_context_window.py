"""The context window, and the plan that a fresh context takes over."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.harness import Harness
from farm.core.rollout import SegmentKind, ToolUse, Turn, TurnKind
from farm.core.summaries import SummarySettings
from farm.episode.context import ContextWindow, plan_state
from farm.episode.context.plan_state import MOST_PLAN_CHARS
from farm.episode.prompts import LEFT_OUT
from farm.policy.base import Message, Reply
from sandboxes.tools.tool import ToolResult
from tests.support.farm.episode_values import call, say

OPENING: Sequence[Message] = ({"role": "system", "content": "be good"}, {"role": "user", "content": "mend it"})
TRIGGER = 100


def new_window(most: int | None = None) -> ContextWindow:
    return ContextWindow(OPENING, Harness(summaries=SummarySettings(TRIGGER, 10, max_summaries=most)), 0)


@dataclass
class Played:
    """A window, the replies that it has as an episode's journal holds them, and the messages of each request."""

    window: ContextWindow
    entries: list[tuple[Reply, bool, bool]] = field(default_factory=list)
    requests: list[tuple[int, Sequence[Message]]] = field(default_factory=list)
    ended: bool = False

    def take(self, reply: Reply, *, is_refused: bool) -> None:
        """Take one reply as the turn loop does."""
        summarises = self.window.needs_summary
        if summarises and self.window.is_exhausted:
            self.ended = True
            return
        asked = self.window.summary_request if summarises else self.window.messages
        self.requests.append((self.window.label.number, list(asked)))
        if is_refused:
            self.ended = not self.window.make_room()
            return
        self.entries.append((reply, summarises, self.window.results_left_out))
        add(self.window, *self.entries[-1])


def add(window: ContextWindow, reply: Reply, is_summary: bool, left_out: bool) -> None:
    """Add a reply as the turn loop restores it from a journal."""
    if not is_summary:
        window.add_turn(reply, [ToolResult(f"result of {one.id}") for one in reply.tool_calls])
        return
    if left_out:
        window.make_room()
    window.add_summary(reply, "")


REPLIES = st.builds(
    lambda content, calls, prompt, completion: say(
        *(call("bash", id_=f"c{index}") for index in range(calls)),
        content=content,
        prompt_tokens=prompt,
        completion_tokens=completion,
    ),
    st.sampled_from(["", " ", "text"]),
    st.integers(0, 2),
    st.integers(0, 90),
    st.integers(0, 60),
)


@given(st.lists(st.tuples(REPLIES, st.integers(0, 5)), max_size=40), st.none() | st.integers(1, 3))
def test_context_is_restored_from_recorded_replies(steps: list[tuple[Reply, int]], most: int | None) -> None:
    played = Played(new_window(most))
    for reply, refusal in steps:
        if not played.ended:
            played.take(reply, is_refused=refusal == 0)
    restored = new_window(most)
    for recorded in played.entries:
        add(restored, *recorded)
    if played.window.results_left_out and not restored.results_left_out:
        restored.make_room()  # the refusal is repeated
    assert restored.messages == played.window.messages
    assert restored.label == played.window.label
    assert (restored.needs_summary, restored.is_exhausted) == (
        played.window.needs_summary,
        played.window.is_exhausted,
    )


@given(st.lists(st.tuples(REPLIES, st.integers(0, 5)), max_size=40))
def test_requests_of_context_extend_each_other(steps: list[tuple[Reply, int]]) -> None:
    """All but the results of the last turn, which no reply has read, stay as they were."""
    played = Played(new_window())
    for reply, refusal in steps:
        if not played.ended:
            played.take(reply, is_refused=refusal == 0)
    for (number, before), (other, after) in zip(played.requests, played.requests[1:], strict=False):
        if number != other:
            assert after[0] == OPENING[0]
            assert len(after) == 2
            continue
        kept = list(before)
        if any(message["content"] == LEFT_OUT for message in after):
            while kept and kept[-1]["role"] in ("tool", "user") and len(kept) > 2:
                kept.pop()
        assert after[: len(kept)] == kept


def test_window_without_summaries_never_needs_one() -> None:
    window = ContextWindow(OPENING, Harness(), 3)
    window.add_turn(say(call("bash"), prompt_tokens=10**9), [ToolResult("out")])
    assert (window.needs_summary, window.make_room()) == (False, False)
    assert (window.label.number, window.label.kind) == (3, SegmentKind.MAIN)


def turn(content: str = "", *uses: ToolUse, kind: TurnKind = TurnKind.TURN) -> Turn:
    return Turn(0, content, None, uses, "stop", "r", 0, 0, 0.0, 0.0, 0.0, kind=kind)


def use(name: str, arguments: str, *, is_error: bool = False) -> ToolUse:
    return ToolUse("c", name, arguments, "", is_error, None, None, False, False, 0.0)


TODO = use("TodoWrite", '{"todos": [{"content": "test", "status": "pending"}]}')
PLAN = use("update_plan", '{"plan": [{"step": "a", "status": "completed"}, {"step": "b", "status": "pending"}]}')


@pytest.mark.parametrize(
    ("turns", "plan"),
    [
        ((), ""),
        ((turn("no plan"),), ""),
        ((turn("<plan>one</plan> and <plan>\ntwo </plan>"), turn("later")), "two"),
        ((turn("<plan>open"),), ""),
        ((turn("</plan>"),), ""),
        ((turn("", TODO), turn("", PLAN)), "[completed] a\n[pending] b"),
        ((turn("<plan>old</plan>", TODO),), "[pending] test"),
        ((turn("", TODO), turn("<plan>new</plan>")), "new"),
        ((turn("<plan>kept</plan>"), turn("", use("TodoWrite", "{", is_error=True))), "kept"),
        ((turn("", TODO), turn("short", PLAN, kind=TurnKind.SUMMARY)), "[pending] test"),
        ((turn("", TODO), turn("", use("TodoWrite", '{"todos": []}'))), ""),
    ],
)
def test_plan_is_last_one_of_policy(turns: Sequence[Any], plan: str) -> None:
    assert plan_state(turns) == plan


def test_long_plan_is_shortened() -> None:
    found = plan_state([turn("<plan>" * 200_000 + "</plan>" * 200_000), turn(f"<plan>{'x' * 20_000}</plan>")])
    assert found.startswith("x" * MOST_PLAN_CHARS + "[... 4000 characters left out")

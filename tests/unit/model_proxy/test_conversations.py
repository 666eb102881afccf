"""Replies are assigned to contexts by tokens: no sampled token is lost or doubled by any interleaving."""

import itertools
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from farm.core.rollout import SegmentKind, WeightSpan
from farm.episode.segments import ContextLabel, SampledReply, build_segments
from farm.model_proxy.conversations import Conversations, Exchange, digests_of
from farm.policy.base import Message, Sampled

MAIN, COMPACTED, SUBAGENT = SegmentKind.MAIN, SegmentKind.COMPACTED, SegmentKind.SUBAGENT


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


@dataclass
class Script:
    """Conversations of a pretended agent; each sampled token is a number of its own."""

    conversations: Conversations = field(default_factory=Conversations)
    replies: list[SampledReply] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1_000_000))
    _moments: "itertools.count[int]" = field(default_factory=itertools.count)

    def moment(self) -> int:
        return next(self._moments)

    def reply(
        self, prompt: Sequence[int], messages: Sequence[Message], count: int = 2, began: int | None = None
    ) -> list[int]:
        """Sample a reply, assign it, and return all tokens up to its end."""
        began = self.moment() if began is None else began
        tokens = [next(self._numbers) for _ in range(count)]
        spans = (WeightSpan(1, 0, count),) if count else ()
        sampled = Sampled(array("i", prompt), array("i", tokens), array("f", [-1.0] * count), spans)
        exchange = Exchange(messages, digests_of(messages), assistant(str(tokens)), began, self.moment())
        self.contexts.append(self.conversations.assign(sampled, exchange).context)
        self.replies.append(SampledReply(sampled, "stop", f"r{len(self.replies)}"))
        return [*prompt, *tokens]


@dataclass
class Talk:
    """One conversation: its tokens and its messages."""

    tokens: list[int]
    messages: list[Message]

    def go_on(self, script: Script, new: Sequence[int] = (), count: int = 2) -> None:
        self.tokens = script.reply([*self.tokens, *new], self.messages, count)
        self.messages = [*self.messages, assistant(str(self.tokens[-count:] if count else [])), user("result")]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(["go on", "rewrite", "fork", "drift"]),
        st.lists(st.integers(0, 3), max_size=3),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)


@given(STEPS)
def test_each_sampled_token_is_in_one_segment(steps: list[tuple[int, str, list[int], int]]) -> None:
    script, talks = Script(), dict[int, Talk]()
    for which, action, new, count in steps:
        talk = talks.get(which)
        if talk is None:
            talk = talks[which] = Talk([which], [user(str(which))])
        elif action == "rewrite":
            talk.tokens, talk.messages = [which, 9, *new], [user(str(which)), user("summary")]
        elif action == "fork":
            talk = Talk(list(talk.tokens[:-1]), list(talk.messages))
        elif action == "drift":  # the engine renders the text of the reply with other tokens
            talk.tokens = [*talk.tokens[:-1], 7]
        talk.go_on(script, new, count)
    kinds = script.conversations.kinds()
    labelled = sorted(
        (
            SampledReply(reply.sampled, reply.finish_reason, reply.request_id, ContextLabel(context, kinds[context]))
            for reply, context in zip(script.replies, script.contexts, strict=True)
        ),
        key=lambda reply: reply.context.number,
    )
    segments = build_segments(labelled)
    masked = Counter(
        token
        for segment in segments
        for token, is_sampled in zip(segment.token_ids, segment.loss_mask, strict=True)
        if is_sampled
    )
    assert masked == Counter(token for reply in script.replies for token in reply.sampled.token_ids)
    assert len(segments) == len(kinds)
    assert segments[0].kind is MAIN
    assert sum(len(segment.turns) for segment in segments) == len(script.replies)


def test_conversation_that_goes_on_is_one_context() -> None:
    script, talk = Script(), Talk([1, 2], [user("task")])
    for _ in range(3):
        talk.go_on(script, [3])
    assert (script.contexts, script.conversations.kinds()) == ([0, 0, 0], [MAIN])


def test_rewritten_history_is_a_compacted_context() -> None:
    script, talk = Script(), Talk([1], [user("task")])
    talk.go_on(script)
    Talk([1, 8], [user("task"), user("summary")]).go_on(script)
    assert script.conversations.kinds() == [MAIN, COMPACTED]


def test_conversation_inside_another_is_a_subagent() -> None:
    script, main, helper = Script(), Talk([1], [user("task")]), Talk([1, 5], [user("task"), user("part")])
    main.go_on(script)
    helper.go_on(script)
    assert script.conversations.kinds() == [MAIN, COMPACTED]
    helper.go_on(script)
    main.go_on(script)
    assert script.contexts == [0, 1, 1, 0]
    assert script.conversations.kinds() == [MAIN, SUBAGENT]


def test_conversation_with_another_opening_is_a_subagent() -> None:
    script = Script()
    Talk([1], [user("task")]).go_on(script)
    Talk([2], [user("another task")]).go_on(script)
    assert script.conversations.kinds() == [MAIN, SUBAGENT]


def test_concurrent_requests_are_subagents() -> None:
    script = Script()
    first, second = script.moment(), script.moment()
    script.reply([1], [user("task")], began=first)
    script.reply([1, 4], [user("task"), user("part")], began=second)
    assert script.conversations.kinds() == [MAIN, SUBAGENT]


def test_context_with_other_tokens_keeps_its_kind() -> None:
    script, talk = Script(), Talk([1], [user("task")])
    talk.go_on(script)
    talk.tokens[-1] = 7
    talk.go_on(script)
    assert (script.contexts, script.conversations.kinds()) == ([0, 1], [MAIN, MAIN])


def test_reply_without_tokens_continues_by_messages() -> None:
    conversations = Conversations()
    opening = [user("task")]
    later = [user("task"), assistant("a"), user("on")]
    first = Exchange(opening, digests_of(opening), assistant("a"), 0, 1)
    second = Exchange(later, digests_of(later), assistant("b"), 2, 3)
    assert [conversations.assign(None, one).context for one in (first, second)] == [0, 1]
    assert conversations.kinds() == [MAIN, MAIN]

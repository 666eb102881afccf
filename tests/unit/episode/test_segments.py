"""Segments are built from the engine's own tokens by the prefix rule, and from nothing else."""

from array import array
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from farm.core.rollout import Segment, SegmentKind, WeightSpan
from farm.episode.segments import ContextLabel, SampledReply, build_segments, version_range
from farm.policy.base import Sampled

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=6)


def reply(prompt: list[int], tokens: list[int], *spans: WeightSpan) -> SampledReply:
    logprobs = array("f", (-float(position) / 8 for position in range(1, len(tokens) + 1)))
    return SampledReply(Sampled(array("i", prompt), array("i", tokens), logprobs, spans), "stop", f"r{len(prompt)}")


@dataclass(frozen=True)
class Conversation:
    """Replies, and for each reply True if its prompt starts a new context."""

    replies: list[SampledReply]
    forks: list[bool]


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Draw prompts that continue the last context, or that start a new context with a unique first token."""
    seen: list[int] = []
    replies: list[SampledReply] = []
    forks: list[bool] = []
    for number in range(draw(st.integers(0, 6))):
        fork = bool(replies) and draw(st.booleans())
        prompt = [2**31 - 1 - number, *draw(TOKENS)] if fork or not replies else seen + draw(TOKENS)
        sampled = draw(TOKENS)
        spans = (WeightSpan(number, 0, len(sampled)),) if sampled else ()
        replies.append(reply(prompt, sampled, *spans))
        forks.append(fork)
        seen = prompt + sampled
    return Conversation(replies, forks)


@given(conversations())
def test_sampled_tokens_are_each_in_one_loss_mask(conversation: Conversation) -> None:
    segments = build_segments(conversation.replies)
    learned = [
        (token, logprob)
        for segment in segments
        for token, logprob, masked in zip(segment.token_ids, segment.logprobs, segment.loss_mask, strict=True)
        if masked
    ]
    sampled = [
        (token, logprob)
        for item in conversation.replies
        for token, logprob in zip(item.sampled.token_ids, item.sampled.logprobs, strict=True)
    ]
    assert learned == sampled


@given(conversations())
def test_segment_equals_last_prompt_and_its_reply(conversation: Conversation) -> None:
    segments = build_segments(conversation.replies)
    assert len(segments) == (1 + sum(conversation.forks) if conversation.replies else 0)
    turns = iter(conversation.replies)
    for segment in segments:
        own = [next(turns) for _ in segment.turns]
        last = own[-1].sampled
        assert segment.token_ids == last.prompt_token_ids + last.token_ids
        assert segment.prompt_length == len(own[0].sampled.prompt_token_ids)
        assert [segment.token_ids[turn.start : turn.end] for turn in segment.turns] == [
            item.sampled.token_ids for item in own
        ]
        assert all(
            not logprob for logprob, masked in zip(segment.logprobs, segment.loss_mask, strict=True) if not masked
        )


@given(conversations())
def test_weight_spans_follow_their_tokens(conversation: Conversation) -> None:
    for segment in build_segments(conversation.replies):
        for span in segment.weight_versions:
            assert all(segment.loss_mask[span.start : span.end])
            assert (span.start, span.end) in [(turn.start, turn.end) for turn in segment.turns]


def only(segments: tuple[Segment, ...]) -> Segment:
    (segment,) = segments
    return segment


def test_tool_results_between_replies_are_masked() -> None:
    segment = only(build_segments([reply([1, 2], [3, 4]), reply([1, 2, 3, 4, 50, 51], [6])]))
    assert segment.token_ids.tolist() == [1, 2, 3, 4, 50, 51, 6]
    assert segment.loss_mask == bytes([0, 0, 1, 1, 0, 0, 1])
    assert segment.logprobs.tolist() == [0, 0, -0.125, -0.25, 0, 0, -0.125]
    assert [(turn.start, turn.end, turn.request_id) for turn in segment.turns] == [(2, 4, "r2"), (6, 7, "r6")]


def test_changed_token_in_prompt_forks_segment() -> None:
    first, second = build_segments([reply([1, 2], [3, 4]), reply([1, 2, 3, 99, 50], [6])])
    assert first.token_ids.tolist() == [1, 2, 3, 4]
    assert second.token_ids.tolist() == [1, 2, 3, 99, 50, 6]
    assert second.loss_mask == bytes([0, 0, 0, 0, 0, 1])


def test_shortened_prompt_forks_segment() -> None:
    first, second = build_segments([reply([1, 2], [3, 4]), reply([1, 2, 3], [5])])
    assert (first.prompt_length, second.prompt_length) == (2, 3)


def test_fresh_context_always_begins_a_segment() -> None:
    compacted = ContextLabel(1, SegmentKind.COMPACTED)
    again = ContextLabel(2, SegmentKind.COMPACTED)
    first = reply([1], [2])
    second, third = replace(reply([1, 2], [3]), context=compacted), replace(reply([1, 2, 3], [4]), context=again)
    segments = build_segments([first, second, third])
    assert [segment.token_ids.tolist() for segment in segments] == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert [segment.kind for segment in segments] == ["main", "compacted", "compacted"]


def test_version_range_is_oldest_and_newest_version() -> None:
    segments = build_segments(
        [reply([1], [2, 3], WeightSpan(7, 0, 1), WeightSpan(8, 1, 2)), reply([9], [4], WeightSpan(5, 0, 1))]
    )
    assert version_range(segments) == (5, 8)
    assert version_range(build_segments([reply([1], [2])])) == (None, None)

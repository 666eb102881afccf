"""Build the segments that a learner trains on from the engine's own tokens of each reply.

The prefix rule: a reply's prompt that begins with every token of the open segment continues it, and what the prompt
adds (tool results, the chat template) is masked. Any other prompt closes the segment and begins a new one: the
policy saw another context. A fresh context always begins a new segment. Nothing is realigned, re-tokenised or padded.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from farm.core.rollout import InvalidRollout, Segment, SegmentKind, SegmentTurn, WeightSpan
from farm.policy.base import Sampled


@dataclass(frozen=True, slots=True)
class ContextLabel:
    """A context of the policy. ``number`` counts the contexts of an episode from 0; ``kind`` says how it began."""

    number: int
    kind: SegmentKind


FIRST_CONTEXT = ContextLabel(0, SegmentKind.MAIN)


@dataclass(frozen=True, slots=True)
class SampledReply:
    """The tokens of one reply, with the id of its request and the context that it belongs to.

    ``is_trained``: false for tokens that are not the policy's own choice, which are masked as those of a prompt.
    """

    sampled: Sampled
    finish_reason: str
    request_id: str
    context: ContextLabel = FIRST_CONTEXT
    is_trained: bool = True


@dataclass(slots=True)
class _Open:
    """A segment that still grows; every list holds one item a token."""

    token_ids: "array[int]"
    loss_mask: bytearray
    logprobs: "array[float]"
    prompt_length: int
    context: ContextLabel
    spans: list[WeightSpan] = field(default_factory=list)
    turns: list[SegmentTurn] = field(default_factory=list)

    def continues_with(self, reply: SampledReply) -> bool:
        sampled = reply.sampled
        if sampled.context_tokens:
            return reply.context == self.context and len(self.token_ids) == sampled.context_tokens
        return reply.context == self.context and sampled.prompt_token_ids[: len(self.token_ids)] == self.token_ids

    def extend_masked(self, tokens: "array[int]") -> None:
        self.token_ids.extend(tokens)
        self.loss_mask.extend(bytes(len(tokens)))
        self.logprobs.frombytes(bytes(len(tokens) * self.logprobs.itemsize))

    def extend_sampled(self, reply: SampledReply) -> None:
        sampled, start = reply.sampled, len(self.token_ids)
        self.token_ids.extend(sampled.token_ids)
        self.loss_mask.extend(b"\x01" * len(sampled.token_ids))
        self.logprobs.extend(sampled.logprobs)
        self.turns.append(SegmentTurn(start, len(self.token_ids), reply.finish_reason, reply.request_id))
        for span in sampled.weight_versions:
            self.spans.append(WeightSpan(span.version, start + span.start, start + span.end))

    def extend_untrained(self, reply: SampledReply) -> None:
        self.extend_masked(reply.sampled.token_ids)
        if not self.turns:
            self.prompt_length = len(self.token_ids)

    def close(self) -> Segment:
        return Segment(
            token_ids=self.token_ids,
            loss_mask=bytes(self.loss_mask),
            logprobs=self.logprobs,
            weight_versions=tuple(self.spans),
            prompt_length=self.prompt_length,
            turns=tuple(self.turns),
            kind=self.context.kind,
        )


def build_segments(replies: Iterable[SampledReply]) -> tuple[Segment, ...]:
    """Return the segments of one conversation in order; each token to train on is in exactly one segment's mask.

    Raises InvalidRollout if a reply whose prompt is left out does not follow the reply that has it.
    """
    closed: list[Segment] = []
    current: _Open | None = None
    for reply in replies:
        prompt = reply.sampled.prompt_token_ids
        if current is None or not current.continues_with(reply):
            if reply.sampled.context_tokens:
                raise InvalidRollout(f"the reply {reply.request_id} continues a context that is not the one before it")
            if current is not None:
                closed.append(current.close())
            current = _Open(array("i"), bytearray(), array("f"), len(prompt), reply.context)
        current.extend_masked(prompt if reply.sampled.context_tokens else prompt[len(current.token_ids) :])
        if reply.is_trained:
            current.extend_sampled(reply)
        else:
            current.extend_untrained(reply)
    if current is not None:
        closed.append(current.close())
    return tuple(closed)


def version_range(segments: Iterable[Segment]) -> tuple[int | None, int | None]:
    """Return the oldest and the newest weights that sampled a token; None if the engine did not name them."""
    versions = [span.version for segment in segments for span in segment.weight_versions]
    return (min(versions), max(versions)) if versions else (None, None)

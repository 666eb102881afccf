"""Build the segments that a learner trains on from the engine's own tokens of each reply.

The prefix rule: a reply's prompt that begins with every token of the open segment continues it, and what the prompt
adds (tool results, the chat template) is masked. Any other prompt closes the segment and begins a new one: the
policy saw another context. A fresh context always begins a new segment. Nothing is realigned, re-tokenised or padded.
"""

from array import array
from collections.abc import Iterable, Sequence
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
    reply_ends: list[int] = field(default_factory=list)

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


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """A place between two tokens of a rollout: ``token`` counts in the segment ``segment``."""

    segment: int
    token: int


@dataclass(frozen=True, slots=True)
class BranchedSegments:
    """The segments of a rollout that shares replies with others. ``places``: where each shared part ends."""

    segments: tuple[Segment, ...]
    places: tuple[TokenPlace, ...]


def build_segments(replies: Iterable[SampledReply]) -> tuple[Segment, ...]:
    """Return the segments of one conversation in order; each token to train on is in exactly one segment's mask.

    Raises InvalidRollout if a reply whose prompt is left out does not follow the reply that has it.
    """
    return tuple(segment.close() for segment in _grow(replies))


def build_branched_segments(replies: Sequence[SampledReply], shared: Sequence[int]) -> BranchedSegments:
    """Return the segments of a rollout that shares its first replies. ``shared``: their number at each branch point.

    The first segments are left out if all of their tokens are shared and none is trained: another rollout of the group
    has them.
    """
    grown = _grow(replies)
    ends = [(number, end) for number, segment in enumerate(grown) for end in segment.reply_ends]
    own = ends[shared[-1]][0] if shared and shared[-1] < len(ends) else 0
    left_out = 0
    while left_out < own and not grown[left_out].turns:
        left_out += 1
    places = [
        TokenPlace(max(0, number - left_out), end if number >= left_out else 0)
        for number, end in (ends[count - 1] for count in shared)
    ]
    return BranchedSegments(tuple(segment.close() for segment in grown[left_out:]), tuple(places))


def _grow(replies: Iterable[SampledReply]) -> list[_Open]:
    grown: list[_Open] = []
    for reply in replies:
        prompt = reply.sampled.prompt_token_ids
        if not grown or not grown[-1].continues_with(reply):
            if reply.sampled.context_tokens:
                raise InvalidRollout(f"the reply {reply.request_id} continues a context that is not the one before it")
            grown.append(_Open(array("i"), bytearray(), array("f"), len(prompt), reply.context))
        current = grown[-1]
        current.extend_masked(prompt if reply.sampled.context_tokens else prompt[len(current.token_ids) :])
        if reply.is_trained:
            current.extend_sampled(reply)
        else:
            current.extend_untrained(reply)
        current.reply_ends.append(len(current.token_ids))
    return grown


def version_range(segments: Iterable[Segment]) -> tuple[int | None, int | None]:
    """Return the oldest and the newest weights that sampled a token; None if the engine did not name them."""
    versions = [span.version for segment in segments for span in segment.weight_versions]
    return (min(versions), max(versions)) if versions else (None, None)

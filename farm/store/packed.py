"""A rollout as it is stored: payload, sidecar and head, each by itself.

What a policy writes decides how long a rollout is, so length never costs the verdict. Segments that are too large to be
stored are left out, and so are the turns and the patch; the reward stays.
"""

import hashlib
from dataclasses import dataclass, replace

from farm.core.orders import parse_rollout_id, rollout_id
from farm.core.rollout import Rollout, Segment, Turn, check
from farm.store.errors import GroupMismatch, RolloutTooLarge
from farm.wire.frames import MAX_RECORD_BYTES, pack_frame
from farm.wire.record import RolloutRecord, head_of, sidecar_of, to_msgpack

_MOST_BYTES = MAX_RECORD_BYTES // 2
"""Of a record or a sidecar: zstd may add to it, and what holds both must fit the GiB that Redis reads of one call."""

_SPAN_BYTES = 64
"""At least what a turn or a span of a segment takes."""

_SHORT_CHARS = 2_000
"""Of each text in a sidecar that would be too large as a whole."""


def run_of(rollout: str) -> str:
    """The run of a rollout id; the empty string, which names no run, for an id of another form."""
    parsed = parse_rollout_id(rollout)
    return parsed[0] if parsed else ""


@dataclass(frozen=True, slots=True)
class Packed:
    mark: str
    payload: bytes
    sidecar: bytes
    head: bytes


def pack_rollout(rollout: Rollout, most_bytes: int = _MOST_BYTES) -> Packed:
    """Check and encode a rollout; ``most_bytes`` bounds the record and the sidecar, each before compression.

    Segments beyond the bound are left out, and the rollout is not trainable. A sidecar beyond it keeps the start of
    each text, and if that is still too much, no turns. ``reason`` says so. Raises InvalidRollout, GroupMismatch,
    MalformedRecord, and RolloutTooLarge if even that is too large.
    """
    check(rollout)
    if run_of(rollout.rollout_id) != rollout.run_id or rollout.rollout_id != rollout_id(
        rollout.group_id, rollout.group_index
    ):
        raise GroupMismatch(f"rollout id {rollout.rollout_id} is not that of {rollout.group_id}[{rollout.group_index}]")
    if sum(map(_segment_bytes, rollout.segments)) > most_bytes:
        rollout = _without_segments(rollout)
    record = RolloutRecord.of(rollout)
    data = to_msgpack(record)
    sidecar = _pack_sidecar(rollout, most_bytes)
    if max(len(data), len(sidecar)) > most_bytes:
        raise RolloutTooLarge(f"rollout {rollout.rollout_id} is {len(data) + len(sidecar)} bytes; that is too many")
    mark = f"{rollout.attempt}:{hashlib.sha256(data).hexdigest()[:16]}"
    return Packed(mark, pack_frame(data), pack_frame(sidecar), to_msgpack(head_of(record)))


def _segment_bytes(segment: Segment) -> int:
    arrays = len(segment.token_ids) * (segment.token_ids.itemsize + 1 + segment.logprobs.itemsize)
    return arrays + _SPAN_BYTES * (len(segment.turns) + len(segment.weight_versions))


def _without_segments(rollout: Rollout) -> Rollout:
    reason = f"{rollout.reason}; untrainable: {len(rollout.segments)} segments are too large to be stored"
    return replace(
        rollout, segments=(), trainable=False, policy_version_min=None, policy_version_max=None, reason=reason
    )


def _pack_sidecar(rollout: Rollout, most_bytes: int) -> bytes:
    if _text_chars(rollout) <= most_bytes:
        packed = to_msgpack(sidecar_of(rollout))
        if len(packed) <= most_bytes:
            return packed
    shortened = replace(
        rollout,
        turns=tuple(map(_shortened, rollout.turns)),
        patch=_start(rollout.patch),
        reason=f"{_start(rollout.reason)}; the turns are shortened: they are too large to be stored",
    )
    if _text_chars(shortened) <= most_bytes:
        packed = to_msgpack(sidecar_of(shortened))
        if len(packed) <= most_bytes:
            return packed
    return to_msgpack(sidecar_of(replace(shortened, turns=())))


def _text_chars(rollout: Rollout) -> int:
    """Count the characters of the sidecar, each at least a byte, so that no huge one is encoded for nothing."""
    uses = (use for turn in rollout.turns for use in turn.tool_uses)
    turns = sum(len(turn.content) + len(turn.reasoning or "") + len(turn.told) for turn in rollout.turns)
    return len(rollout.patch) + turns + sum(len(use.arguments) + len(use.result) for use in uses)


def _shortened(turn: Turn) -> Turn:
    return replace(
        turn,
        content=_start(turn.content),
        reasoning=None if turn.reasoning is None else _start(turn.reasoning),
        tool_uses=tuple(
            replace(use, arguments=_start(use.arguments), result=_start(use.result)) for use in turn.tool_uses
        ),
    )


def _start(text: str) -> str:
    if len(text) <= _SHORT_CHARS:
        return text
    return f"{text[:_SHORT_CHARS]}… [{len(text) - _SHORT_CHARS} more characters are not stored]"

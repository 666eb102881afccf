"""The values that the store returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from farm.core.run import RunSpec
from farm.schemas.msgpack_encoding import MalformedRecord
from farm.schemas.rollout import RolloutHead, from_msgpack
from farm.schemas.run_encoding import load_run_spec


class RunState(StrEnum):
    """The state of a run. The last three are final."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        return self not in (RunState.RUNNING, RunState.PAUSED)


class StreamState(StrEnum):
    """The state of a run's stream, as a learner needs it.

    ``open``: the run goes on, or a complete group is neither acked nor dropped, or an ack is provisional. ``drained``:
    the run has ended, and every group is dropped or its ack is final. ``failed``: as ``drained``, of a run that failed.
    ``acked``, only for a learner that makes checkpoints: the run has ended, every group is acked or dropped, and acks
    of this learner are provisional; its next checkpoint makes them final.
    """

    OPEN = "open"
    ACKED = "acked"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """``counts`` holds the counters named in ``lua/keys.lua``; times are Unix seconds."""

    spec: RunSpec
    state: RunState
    reason: str
    created_at: float
    ended_at: float | None
    counts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LeasedGroup:
    """A complete group: ``deliveries`` counts this one; ``unjudged`` members have no reward."""

    group_id: str
    size: int
    deliveries: int
    tokens: int
    unjudged: int
    zero_variance: bool
    policy_version: int | None
    rollout_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease. Without groups, ``lease_id`` is empty and ``expires_at`` is 0 (Unix seconds, by Redis's clock).

    ``policy_version``: the learner's version that the groups' versions are compared with, or None if it is unknown.
    """

    lease_id: str
    run_id: str
    expires_at: float
    groups: tuple[LeasedGroup, ...]
    stream: StreamState
    policy_version: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedLease:
    """A lease that was acked or nacked, and the state of the run's stream after it.

    ``acks``: the number of the last ack of a learner that makes checkpoints, which names it in a checkpoint; else None.
    """

    stream: StreamState
    acks: int | None


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """A page of rollouts, newest first.

    ``cursor`` fetches the next page; None at the end. ``unreadable``: ids of the records that could not be read; the
    filter does not apply to them.
    """

    rollouts: tuple[RolloutHead, ...]
    cursor: str | None
    unreadable: tuple[str, ...] = ()


def run_record(run: Mapping[bytes, bytes], counts: Mapping[bytes, bytes]) -> RunRecord:
    """Return a run from its hash in Redis and from the hash of its counters."""
    ended = run.get(b"ended_ms")
    return RunRecord(
        spec=load_run_spec(run[b"spec"]),
        state=RunState(run[b"state"].decode()),
        reason=run[b"reason"].decode(),
        created_at=int(run[b"created_ms"]) / 1000,
        ended_at=int(ended) / 1000 if ended else None,
        counts=counters(counts),
    )


def counters(counts: Mapping[bytes, bytes]) -> dict[str, float]:
    """Return counters by name from their hash in Redis."""
    return {name.decode(): float(value) for name, value in counts.items()}


def read_head(packed: bytes) -> RolloutHead | MalformedRecord:
    """Return a head, or the error that it cannot be read."""
    try:
        return from_msgpack(RolloutHead, packed)
    except MalformedRecord as error:  # one record that cannot be read must not hide the others
        return error

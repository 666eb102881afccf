"""Learners that make checkpoints: their acks are provisional until one, and a restore undoes those after it."""

from dataclasses import dataclass
from typing import Any

from farm.store.errors import (
    RUNS_LISTED,
    CheckpointNeeded,
    CheckpointRefused,
    TooManyLearners,
    UnknownCheckpoint,
    UnknownLearner,
    UnknownRun,
    WrongHistory,
)
from farm.store.redis_client import RedisConnection

MOST_LEARNERS = 64
"""The number of learners of one run. Each keeps some keys in Redis as long as the run."""


@dataclass(frozen=True, slots=True)
class LearnerLife:
    """One life of a learner: a restore begins it and returns its ``history``, and the next restore ends it."""

    learner: str
    history: int


@dataclass(frozen=True, slots=True)
class LearnerRecord:
    """The state of a learner in one run.

    ``step``: that of its last checkpoint; 0 is the start. ``acks`` counts the groups that were acked in the surviving
    history, ``final`` those before the last checkpoint, and ``provisional`` the others. ``leases`` counts live leases.
    ``updated_at``: Unix time of the last checkpoint or restore.
    """

    run_id: str
    learner: str
    history: int
    step: int
    acks: int
    final: int
    provisional: int
    leases: int
    updated_at: float


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """``final`` counts the groups whose acks this call made final."""

    record: LearnerRecord
    final: int


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """``undone`` counts the groups whose acks were undone, ``released`` those of the leases that were ended."""

    record: LearnerRecord
    undone: int
    released: int


class CheckpointStore:
    """The learners of runs and their checkpoints, in Redis."""

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    async def restore(self, run_id: str, learner: str, step: int) -> RestoreResult:
        """Begin a life of a learner at its last checkpoint, which must be that of ``step``; 0 is the start.

        Groups that were acked after the checkpoint are free again, in the order of the acks. Live leases of the learner
        end, and every call of its earlier lives is refused. Raises UnknownRun, UnknownCheckpoint, TooManyLearners.
        """
        answer = await self._run(run_id, "restore", learner, step, MOST_LEARNERS)
        if answer == b"many":
            raise TooManyLearners(
                f"the run {run_id} has {MOST_LEARNERS} learners; use the name of one of them, or make another run"
            )
        if answer[0] == b"step":
            raise UnknownCheckpoint(
                f"the last checkpoint of the learner {learner} in the run {run_id} is of step {int(answer[1])}, and "
                f"step {step} is another, which cannot be restored; restore step {int(answer[1])}"
            )
        return RestoreResult(_record(run_id, answer[1]), int(answer[2]), int(answer[3]))

    async def checkpoint(self, run_id: str, life: LearnerLife, step: int, acks: int | None = None) -> CheckpointResult:
        """Make the first ``acks`` acks of a learner final; None: all. The same checkpoint again changes nothing.

        Raises UnknownRun, UnknownLearner, WrongHistory, CheckpointRefused.
        """
        upto = "" if acks is None else acks
        answer = await self._run(run_id, "checkpoint", life.learner, life.history, step, upto)
        refuse_life(run_id, life, answer)
        if answer[0] == b"order":
            raise CheckpointRefused(
                f"the last checkpoint of the learner {life.learner} in the run {run_id} is of step {int(answer[1])} "
                f"and includes {int(answer[2])} acks; step {step} is not after it: name a greater step"
            )
        if answer[0] == b"acks":
            raise CheckpointRefused(
                f"the learner {life.learner} has {int(answer[2])} acks in the run {run_id}, of which {int(answer[1])} "
                f"are final; a checkpoint of {acks} acks is not possible: name a number between these, or none for all"
            )
        return CheckpointResult(_record(run_id, answer[1]), int(answer[2]))

    async def list(self, run_id: str) -> tuple[LearnerRecord, ...]:
        """Return the learners of a run that make checkpoints, in the order of their names. Raises UnknownRun."""
        return tuple(_record(run_id, one) for one in await self._run(run_id, "learners"))

    async def _run(self, run_id: str, command: str, *arguments: str | int) -> Any:
        answer = await self._connection.run_script(f"{self._prefix}:{{{run_id}}}", command, *arguments)
        if answer == b"unknown":
            raise UnknownRun(f"there is no run {run_id}; {RUNS_LISTED}")
        return answer


def refuse_life(run_id: str, life: LearnerLife, answer: Any) -> None:
    """Raise the error of an answer of the store that refuses a life of a learner."""
    match answer:
        case [b"unknown-learner"]:
            raise UnknownLearner(
                f"the run {run_id} has no learner {life.learner}; begin with POST /v1/checkpoints/0/restore"
            )
        case [b"history", current]:
            raise WrongHistory(
                f"the learner {life.learner} of the run {run_id} was restored and is in history {int(current)}; "
                f"history {life.history} is not the current one: stop this learner, or restore its last checkpoint"
            )
        case [b"checkpoint", most]:
            raise CheckpointNeeded(
                f"the learner {life.learner} has {int(most)} acks in the run {run_id} without a checkpoint, and may "
                "have no more; save a checkpoint and report it, or raise provisional_groups"
            )


def _record(run_id: str, found: Any) -> LearnerRecord:
    name, history, step, acks, final, provisional, leases, at_ms = found
    return LearnerRecord(
        run_id=run_id,
        learner=name.decode(),
        history=int(history),
        step=int(step),
        acks=int(acks),
        final=int(final),
        provisional=int(provisional),
        leases=int(leases),
        updated_at=int(at_ms) / 1000,
    )

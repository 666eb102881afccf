"""Answers about checkpoints and requested groups."""

from typing import Literal

from farm.schemas.responses import AnswerBody, GroupAnswer


class LearnerAnswer(AnswerBody):
    """A learner that makes checkpoints, in one run.

    ``step`` is that of its last checkpoint; 0 is the start. ``acks`` counts the groups that were acked in the surviving
    history, ``final`` those that the last checkpoint includes, and ``provisional`` the others. ``leases`` counts its
    live leases. ``updated_at``: Unix seconds of the last checkpoint or restore.
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


class LearnersAnswer(AnswerBody):
    learners: tuple[LearnerAnswer, ...]


class CheckpointAnswer(LearnerAnswer):
    """The learner after a checkpoint. ``made_final`` counts the groups whose acks this call made final."""

    made_final: int


class RestoreAnswer(LearnerAnswer):
    """The learner after a restore, in its new ``history``.

    ``undone`` counts the groups whose acks were undone, and ``released`` those of leases that the restore ended. All of
    them are delivered again, first those that were acked, in the order of the acks.
    """

    undone: int
    released: int


class RequestedGroupAnswer(AnswerBody):
    """A requested group without its rollouts. ``accepted`` of ``size`` members have ended.

    ``state``: ``running``; ``complete``, with all its rollouts; ``cancelled``; or ``failed``, and ``reason`` says why.
    ``created_at``: Unix seconds.
    """

    group_id: str
    state: Literal["running", "complete", "cancelled", "failed"]
    reason: str
    accepted: int
    size: int
    task_id: str
    created_at: float


class RequestedGroupsAnswer(AnswerBody):
    groups: tuple[RequestedGroupAnswer, ...]


class ReadGroupAnswer(GroupAnswer):
    """A requested group, with its rollouts once it is complete. ``state`` and others: see RequestedGroupAnswer."""

    state: Literal["running", "complete", "cancelled", "failed"]
    reason: str
    accepted: int
    task_id: str
    created_at: float


class DeletedGroupAnswer(AnswerBody):
    group_id: str

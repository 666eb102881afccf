"""Checkpoints of a learner.

life = farm.checkpoints.restore(run_id, "trainer", step)       # 0: the start
lease = farm.lease("rank-0", run_id=run_id, learner="trainer", history=life.history)
...
farm.checkpoints.save(run_id, "trainer", life.history, step, acks=acks)
"""

from typing import Any

from farm.client.http import HttpSession
from farm.schemas.delivery.answers import CheckpointAnswer, LearnerAnswer, LearnersAnswer, RestoreAnswer


class CheckpointsClient:
    """The checkpoints of learners. Every method may raise FarmError."""

    def __init__(self, exchange: HttpSession) -> None:
        self._exchange = exchange

    def restore(self, run_id: str, learner: str, step: int) -> RestoreAnswer:
        """Begin a life of a learner at its last checkpoint, of ``step``; 0 is the start. Return its new history.

        Groups that were acked after that checkpoint are delivered again.
        """
        body = {"run_id": run_id, "learner": learner}
        return self._exchange.post(RestoreAnswer, f"/v1/checkpoints/{step:d}/restore", body)

    def save(self, run_id: str, learner: str, history: int, step: int, *, acks: int | None = None) -> CheckpointAnswer:
        """Report a checkpoint that the learner has saved: the acks that it includes are final.

        ``acks``: the number of the last ack that it includes, from the answer of that ack; None: all until now. The
        same checkpoint again has no effect. Raises WrongHistory if the learner was restored meanwhile.
        """
        body: dict[str, Any] = {"run_id": run_id, "learner": learner, "history": history, "step": step}
        return self._exchange.post(CheckpointAnswer, "/v1/checkpoints", body | ({} if acks is None else {"acks": acks}))

    def learners(self, run_id: str) -> tuple[LearnerAnswer, ...]:
        """Return the learners of a run that make checkpoints."""
        return self._exchange.get(LearnersAnswer, "/v1/checkpoints", {"run_id": run_id}).learners

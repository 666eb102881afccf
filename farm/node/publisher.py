"""What a node agent brings to the store, and gets from it, however long the store stays away."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from farm.core.rollout import Rollout
from farm.core.run import EpisodeAssignment
from farm.episode import bare_verdict, failed_rollout
from farm.store import RunEnded, StoreUnavailable, UnknownRun

T = TypeVar("T")
_log = logging.getLogger(__name__)


class AgentStore(Protocol):
    async def get_bundle(self, digest: str) -> bytes | None: ...

    async def publish_scored(self, rollout: Rollout, pinned: str = "") -> Rollout: ...


class RolloutPublisher:
    def __init__(self, store: AgentStore, node_id: str, longest_backoff_s: float) -> None:
        self._store = store
        self._node_id = node_id
        self._longest_backoff_s = longest_backoff_s

    async def publish(self, order: EpisodeAssignment, rollout: Rollout) -> tuple[Rollout, bool]:
        """What became of the rollout, and whether it is published; a failure that another attempt may mend is not.

        If the store refuses a judged rollout, its bare verdict is offered instead: what a policy writes must not make
        its episode unjudgeable. If that is refused as well, a failure that says why; and if that is, the scheduler
        learns that nothing is published, and decides.
        """
        if rollout.error and rollout.error.retryable and not order.final:
            return rollout, False
        taken = await self._try_publish(order, rollout)
        if isinstance(taken, Rollout):
            return taken, True
        if rollout.reward is not None:
            taken = await self._try_publish(order, bare_verdict(rollout, str(taken)))
            if isinstance(taken, Rollout):
                return taken, True
        bare = failed_rollout(order, taken, node=self._node_id)
        taken = await self._try_publish(order, bare)
        return bare, isinstance(taken, Rollout)

    async def _try_publish(self, order: EpisodeAssignment, rollout: Rollout) -> Rollout | Exception:
        """Publish, judged by the rules in force; or what the store has against it. A run that is over has nobody left
        to tell."""
        try:
            return await self.retry_until_available(lambda: self._store.publish_scored(rollout, order.rewards))
        except (UnknownRun, RunEnded) as error:
            _log.info("rollout %s came too late: %s", rollout.rollout_id, error)
            return rollout
        except Exception as error:  # whatever keeps a rollout from being stored must reach the learner as its failure
            _log.error("rollout %s was refused: %s", rollout.rollout_id, error)
            return error

    async def retry_until_available(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until the store serves it; each wait is longer, up to a bound."""
        wait_s = 0.1
        while True:
            try:
                return await call()
            except StoreUnavailable as error:
                _log.warning("%s; trying again in %.1f s", error, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, self._longest_backoff_s)

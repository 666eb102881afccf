"""Sandboxes that a node has ready: for the orders that it is likely to get next, and to judge what it runs."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from farm.core.run import TaskRef
from farm.episode import EpisodeEvent, EventKind, OnEvent
from farm.node.image_cache import ImageCache
from farm.node.task_cache import TaskCache
from farm.tasks import TaskBundle, policy_spec, sandbox_spec
from sandboxes import WarmPool

_log = logging.getLogger(__name__)


class SandboxPrewarmer:
    """``pool`` None: none are ready, ever."""

    def __init__(self, pool: WarmPool | None, bundles: TaskCache, shelf: ImageCache) -> None:
        self._pool = pool
        self._bundles = bundles
        self._shelf = shelf
        self._expecting: asyncio.Task[None] | None = None

    def prewarm(self, sandboxes: Sequence[tuple[TaskRef, int]]) -> None:
        """So many of each task, in place of what was expected before."""
        if self._pool is None:
            return
        if self._expecting is not None:  # the pool keeps for a while what nobody wants: the same may be wanted again
            self._expecting.cancel()
        self._expecting = asyncio.create_task(self._want(self._pool, sandboxes))

    async def close(self) -> None:
        if self._expecting is not None:
            self._expecting.cancel()
            await asyncio.gather(self._expecting, return_exceptions=True)

    @contextmanager
    def prewarm_grader(self, bundle: TaskBundle) -> Iterator[OnEvent | None]:
        """What an episode is to tell, so that a sandbox to judge it in is ready once its policy has stopped.

        None where there is nothing to get ready, or none is needed: an answer is judged without.
        """
        pool = self._pool
        if pool is None or bundle.task.retrieval is not None:
            yield None
            return
        with ExitStack() as want:

            def hear(event: EpisodeEvent) -> None:
                if event.kind is EventKind.TURN_STARTED and event.turn == 0:
                    want.enter_context(pool.reserve(sandbox_spec(bundle.task, labels={}, hides_tests=True)))
                elif event.kind is EventKind.GRADING:
                    want.close()

            yield hear

    async def _want(self, pool: WarmPool, sandboxes: Sequence[tuple[TaskRef, int]]) -> None:
        with ExitStack() as wants:

            async def want(task: TaskRef, count: int) -> None:
                try:
                    bundle = await self._bundles.get(task)
                    await self._shelf.ensure(bundle)
                except Exception as error:  # an order of the task meets the same, and makes it its failure
                    _log.info("no sandbox of %s is kept ready: %s", task.id, error)
                    return
                wants.enter_context(pool.reserve(policy_spec(bundle.task, labels={}), count))

            await asyncio.gather(*(want(task, count) for task, count in sandboxes))
            await asyncio.Event().wait()

"""Prewarmed sandboxes of a node: for the assignments that are likely next, and to grade the episodes that run."""

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
    """Keep sandboxes ready in ``pool``; None: there are no prewarmed sandboxes."""

    def __init__(self, pool: WarmPool | None, tasks: TaskCache, images: ImageCache) -> None:
        self._pool = pool
        self._tasks = tasks
        self._images = images
        self._reserving: asyncio.Task[None] | None = None

    def prewarm(self, sandboxes: Sequence[tuple[TaskRef, int]]) -> None:
        """Keep so many sandboxes of each task ready, in place of those of the last call."""
        if self._pool is None:
            return
        if self._reserving is not None:  # the pool keeps unreserved sandboxes for a while
            self._reserving.cancel()
        self._reserving = asyncio.create_task(self._reserve(self._pool, sandboxes))

    async def close(self) -> None:
        if self._reserving is not None:
            self._reserving.cancel()
            await asyncio.gather(self._reserving, return_exceptions=True)

    @contextmanager
    def prewarm_grader(self, bundle: TaskBundle) -> Iterator[OnEvent | None]:
        """Yield the event listener by which a grading sandbox is ready when the policy stops.

        Yield None if there is no pool, or if no sandbox is needed, as for an answer.
        """
        pool = self._pool
        if pool is None or bundle.task.retrieval is not None:
            yield None
            return
        with ExitStack() as reservation:

            def on_event(event: EpisodeEvent) -> None:
                if event.kind is EventKind.TURN_STARTED and event.turn == 0:
                    reservation.enter_context(pool.reserve(sandbox_spec(bundle.task, labels={}, hides_tests=True)))
                elif event.kind is EventKind.GRADING:
                    reservation.close()

            yield on_event

    async def _reserve(self, pool: WarmPool, sandboxes: Sequence[tuple[TaskRef, int]]) -> None:
        with ExitStack() as reservations:

            async def reserve(task: TaskRef, count: int) -> None:
                try:
                    bundle = await self._tasks.get(task)
                    await self._images.ensure(bundle)
                except Exception as error:  # an assignment of the task will fail with the same error
                    _log.info("no sandbox of %s is prewarmed: %s", task.id, error)
                    return
                reservations.enter_context(pool.reserve(policy_spec(bundle.task, labels={}), count))

            await asyncio.gather(*(reserve(task, count) for task, count in sandboxes))
            await asyncio.Event().wait()

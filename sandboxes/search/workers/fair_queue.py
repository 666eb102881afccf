"""Share the indexing processes between sandboxes: a CPU budget for each sandbox, and a queue by CPU time used."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

MOST_S = 60.0
"""Maximum seconds of CPU time in the budget. The largest tree that can be indexed takes a third of it."""

PER_S = 0.05
"""Seconds of budget that are restored in each second."""


class CpuBudget:
    """The CPU time of indexing processes that one sandbox has used, in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._used_s = 0.0
        self._at = now()

    @property
    def taken_s(self) -> float:
        """The CPU time used and not yet restored."""
        return max(0.0, self._used_s - (self._now() - self._at) * PER_S)

    @property
    def is_used_up(self) -> bool:
        return self.taken_s >= MOST_S

    def take(self, seconds: float) -> None:
        self._used_s, self._at = self.taken_s + seconds, self._now()


def least_taken(budgets: Iterable[CpuBudget]) -> float:
    """Return the smallest CPU time used; it decides the turn of work that several sandboxes wait for."""
    return min((budget.taken_s for budget in budgets), default=0.0)


class FairQueue:
    """A semaphore for ``most`` holders. The waiter with the least CPU time used goes next."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: list[tuple[Callable[[], float], asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, taken_s: Callable[[], float]) -> AsyncIterator[None]:
        """Wait for a turn and hold it. ``taken_s`` is called whenever a turn ends."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(taken_s)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, taken_s: Callable[[], float]) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (taken_s, granted)
        self._waiting.append(waiting)
        try:
            await granted
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self._release()  # the turn was already granted
            raise

    def _release(self) -> None:
        waiting_now = [waiting for waiting in self._waiting if not waiting[1].done()]
        if not waiting_now:
            self._free += 1
            return
        following = min(waiting_now, key=lambda waiting: waiting[0]())
        self._waiting.remove(following)
        following[1].set_result(None)

"""What one sandbox may take of the processes that read hostile text, and who is next where several wait for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

MOST_S = 60.0
"""Of processor time, at once. The largest tree that a search takes is read in a third of it."""

PER_S = 0.05
"""So much comes back with each second."""


class CpuBudget:
    """Of one sandbox, in seconds of the indexing processes' time."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._taken_s = 0.0
        self._at = now()

    @property
    def taken_s(self) -> float:
        """What is not forgotten yet."""
        return max(0.0, self._taken_s - (self._now() - self._at) * PER_S)

    @property
    def is_used_up(self) -> bool:
        return self.taken_s >= MOST_S

    def take(self, seconds: float) -> None:
        self._taken_s, self._at = self.taken_s + seconds, self._now()


def least_taken(allowances: Iterable[CpuBudget]) -> float:
    """For what several wait for together: it is the turn of whoever has taken the least."""
    return min((allowance.taken_s for allowance in allowances), default=0.0)


class FairQueue:
    """``most`` at once; of those that wait, the one that has taken the least so far is next."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: list[tuple[Callable[[], float], asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, taken_s: Callable[[], float]) -> AsyncIterator[None]:
        """``taken_s`` is asked whenever somebody's turn has ended."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(taken_s)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, taken_s: Callable[[], float]) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = (taken_s, called)
        self._waiting.append(waiting)
        try:
            await called
        except asyncio.CancelledError:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                self._pass_on()  # its turn had come already
            raise

    def _pass_on(self) -> None:
        still = [waiting for waiting in self._waiting if not waiting[1].done()]
        if not still:
            self._free += 1
            return
        following = min(still, key=lambda waiting: waiting[0]())
        self._waiting.remove(following)
        following[1].set_result(None)

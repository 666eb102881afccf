"""Bound the part of the event loop that the requests of one sandbox take."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PIECE_S = 0.002
"""Seconds of work after which it pauses."""
PAUSE_FACTOR = 4.0
"""A pause is this many times as long as the work before it, so the work takes at most a fifth of the loop."""

Result = TypeVar("Result")


class LoopShare:
    """Runs pieces of work one after the other, with pauses in which the loop is free for all others."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._spent_s = 0.0

    async def run(self, work: Callable[[], Result]) -> Result:
        """Return the result of ``work``, which takes at most some milliseconds."""
        async with self._lock:
            began = time.perf_counter()
            try:
                return work()
            finally:
                self._spent_s += time.perf_counter() - began
                if self._spent_s >= PIECE_S:
                    pause_s, self._spent_s = PAUSE_FACTOR * self._spent_s, 0.0
                    await asyncio.sleep(pause_s)

"""How many sandboxes boot at the same time on this machine: as many as it boots without slowing down much.

Which resource is short is not asked. Boots that only wait for each other, be it for a core, the daemon or the disk,
take longer than one alone does; so what a boot takes is compared with the least that one took lately, as TCP Vegas
does with round trips. Memory is the exception: where it is short each further boot makes that worse, so the kernel is
asked and the number halved. A busy processor is none: measured beside eight busy loops on two cores, fewer boots at
once left the loops more and made half as many sandboxes.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sandboxes.host.pressure import Pressure, read_pressure

FIRST_PER_CORE, MOST_PER_CORE = 2, 4
LEAST = 4
"""However slow boots have become: with fewer at once, none of the loads tried let more of them through."""

STRETCH = 2.0, 3.0
"""A boot that takes no more than the first times the least lets more in at once; one that takes more than the second,
fewer."""

STEP_DOWN = 0.2
"""For each such boot: a fifth less each time that as many have booted as may at once."""

FLOOR_S = 30.0
"""The least that a boot took is forgotten after one to two of these: the machine may have become another."""

PAUSE_S = 1.0
"""Between two steps down for want of memory."""


class AdaptiveLimit:
    """The number, a pure function of what it was told: what boots took, and how pressed the machine was."""

    def __init__(self, cores: int) -> None:
        self._most = float(max(LEAST, MOST_PER_CORE * cores))
        self._number = float(max(LEAST, FIRST_PER_CORE * cores))
        self._least_s = [math.inf, math.inf]
        """That a boot took in the present window, and in the one before."""
        self._window_ends_at = -math.inf
        self._halved_at = -math.inf

    @property
    def limit(self) -> int:
        return int(self._number)

    def booted(self, took_s: float, *, others_wait: bool, now: float) -> None:
        """One has; ``others_wait`` for their turn, without whom a higher number would be of no use."""
        self._note(took_s, now)
        stretch = took_s / max(min(self._least_s), 1e-9)
        if others_wait and (stretch <= STRETCH[0] or self._number < LEAST):
            self._number = min(self._number + 1 / self._number, self._most)
        elif stretch > STRETCH[1] and self._number > LEAST:
            self._number = max(self._number - STEP_DOWN, LEAST)

    def timed_out(self) -> None:
        """One was not ready in its time."""
        self._number = max(self._number - 1.0, min(self._number, LEAST))

    def pressed(self, pressure: Pressure, *, now: float) -> None:
        if pressure.short_of_memory and now - self._halved_at >= PAUSE_S:
            self._number = max(self._number / 2, 1.0)
            self._halved_at = now

    def _note(self, took_s: float, now: float) -> None:
        if now >= self._window_ends_at:
            stale = now >= self._window_ends_at + FLOOR_S
            self._least_s = [math.inf, math.inf if stale else self._least_s[0]]
            self._window_ends_at = now + FLOOR_S
        self._least_s[0] = min(self._least_s[0], took_s)


class BootLimiter:
    """Lets boots through in the order in which they came, as many at once as its ``pace`` says."""

    def __init__(
        self,
        pace: AdaptiveLimit,
        *,
        read: Callable[[], Pressure] = read_pressure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pace = pace
        self._read = read
        self._clock = clock
        self._read_at = -math.inf
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for its turn; the block is the boot, which raises TimeoutError where it takes too long. Any other
        failure says nothing of how fast the machine is."""
        await self._enter()
        began = self._clock()
        try:
            yield
            now = self._clock()
            self._pace.booted(now - began, others_wait=bool(self._waiting), now=now)
        except TimeoutError:
            self._pace.timed_out()
            raise
        finally:
            self._leave()

    async def _enter(self) -> None:
        self._look()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._leave()
            raise

    def _leave(self) -> None:
        self._inside -= 1
        self._look()
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._inside < self._pace.limit:
            turn = self._waiting.popleft()
            if not turn.done():  # whoever waited for it was cancelled
                self._inside += 1
                turn.set_result(None)

    def _look(self) -> None:
        now = self._clock()
        if now - self._read_at >= PAUSE_S:
            self._read_at = now
            self._pace.pressed(self._read(), now=now)

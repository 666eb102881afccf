"""Limit the number of concurrent boots on this machine to as many as it can boot without much slowdown.

The limit adapts to boot times, not to a certain resource: like TCP Vegas does with round trips, it compares each boot
time with the recent minimum, because boots that wait for a core, the daemon or the disk take longer than one alone.
time with the recent minimum, because boots that wait for a core, the daemon or the disk take longer than one alone.
Memory is the exception: further boots make a shortage worse, so the kernel's pressure is read and the limit halved. A
busy processor is not: beside eight busy loops on two cores, fewer concurrent boots made half as many sandboxes.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sandboxes.host.pressure import Pressure, read_pressure

INITIAL_PER_CORE, MAX_PER_CORE = 2, 4
MIN_LIMIT = 4
"""Minimum limit: with fewer concurrent boots, no tested load had a higher throughput."""

STRETCH = 2.0, 3.0
"""Multiples of the minimum boot time. A boot below the first raises the limit; a boot above the second lowers it."""

STEP_DOWN = 0.2
"""Decrease for each slow boot: a fifth for each round of as many boots as the limit."""

WINDOW_S = 30.0
"""Age of the minimum: it is forgotten after one to two of these windows, because the machine's load changes."""

PAUSE_S = 1.0
"""Minimum time between two readings of the memory pressure."""


class AdaptiveLimit:
    """The limit, as a pure function of boot times and memory pressure."""

    def __init__(self, cores: int) -> None:
        self._maximum = float(max(MIN_LIMIT, MAX_PER_CORE * cores))
        self._limit = float(max(MIN_LIMIT, INITIAL_PER_CORE * cores))
        self._minimum_s = [math.inf, math.inf]
        """Minimum boot time in the current window, and in the one before."""
        self._window_ends_at = -math.inf
        self._halved_at = -math.inf

    @property
    def limit(self) -> int:
        return int(self._limit)

    def record_boot(self, took_s: float, *, others_wait: bool, now: float) -> None:
        """Record a boot. ``others_wait``: boots are queued, so that a higher limit would be used."""
        self._update_minimum(took_s, now)
        stretch = took_s / max(min(self._minimum_s), 1e-9)
        if others_wait and (stretch <= STRETCH[0] or self._limit < MIN_LIMIT):
            self._limit = min(self._limit + 1 / self._limit, self._maximum)
        elif stretch > STRETCH[1] and self._limit > MIN_LIMIT:
            self._limit = max(self._limit - STEP_DOWN, MIN_LIMIT)

    def record_timeout(self) -> None:
        """Record a boot that timed out."""
        self._limit = max(self._limit - 1.0, min(self._limit, MIN_LIMIT))

    def record_pressure(self, pressure: Pressure, *, now: float) -> None:
        if pressure.short_of_memory and now - self._halved_at >= PAUSE_S:
            self._limit = max(self._limit / 2, 1.0)
            self._halved_at = now

    def _update_minimum(self, took_s: float, now: float) -> None:
        if now >= self._window_ends_at:
            stale = now >= self._window_ends_at + WINDOW_S
            self._minimum_s = [math.inf, math.inf if stale else self._minimum_s[0]]
            self._window_ends_at = now + WINDOW_S
        self._minimum_s[0] = min(self._minimum_s[0], took_s)


class BootLimiter:
    """Lets boots start in order of arrival, at most ``limit.limit`` concurrently."""

    def __init__(
        self,
        limit: AdaptiveLimit,
        *,
        read: Callable[[], Pressure] = read_pressure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._adaptive_limit = limit
        self._read_pressure = read
        self._clock = clock
        self._read_at = -math.inf
        self._booting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the boot, which is the block, may start.

        A TimeoutError of the block counts as a slow boot. Other errors do not affect the limit.
        """
        await self._enter()
        began = self._clock()
        try:
            yield
            now = self._clock()
            self._adaptive_limit.record_boot(now - began, others_wait=bool(self._waiting), now=now)
        except TimeoutError:
            self._adaptive_limit.record_timeout()
            raise
        finally:
            self._leave()

    async def _enter(self) -> None:
        self._read_memory_pressure()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the boot had been let in
                self._leave()
            raise

    def _leave(self) -> None:
        self._booting -= 1
        self._read_memory_pressure()
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._booting < self._adaptive_limit.limit:
            turn = self._waiting.popleft()
            if not turn.done():  # its caller was cancelled
                self._booting += 1
                turn.set_result(None)

    def _read_memory_pressure(self) -> None:
        now = self._clock()
        if now - self._read_at >= PAUSE_S:
            self._read_at = now
            self._adaptive_limit.record_pressure(self._read_pressure(), now=now)

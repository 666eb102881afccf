"""Measure several sides in alternating rounds, so that other load on the machine affects all sides alike."""

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Act = Callable[[], Awaitable[float]]
"""Performs one operation and returns the seconds that count."""

_STAT = Path("/proc/stat")
_TICKS_PER_S = 100  # USER_HZ, the unit of /proc/stat
_IDLE, _WAITING = 3, 4


@dataclass(slots=True)
class Side:
    """One side of a comparison: ``times`` operations in a round, ``concurrency`` at once, and their measurements."""

    act: Act
    times: int
    concurrency: int = 1
    took_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    async def round(self, *, counts: bool) -> None:
        took_s: list[float] = []
        left = iter(range(self.times))

        async def lane() -> None:
            for _ in left:
                took_s.append(await self.act())

        busy_s, began = machine_busy_s(), time.monotonic()
        async with asyncio.TaskGroup() as lanes:
            for _ in range(min(self.concurrency, self.times)):
                lanes.create_task(lane())
        if counts:
            self.rates.append(self.times / (time.monotonic() - began))
            self.cpu_s.append((machine_busy_s() - busy_s) / self.times)
            self.took_s += took_s

    @property
    def p50_ms(self) -> float:
        return 1000 * statistics.median(self.took_s)

    @property
    def per_s(self) -> float:
        """Operations per second, the median of the rounds."""
        return statistics.median(self.rates)

    @property
    def cpu_ms(self) -> float:
        """CPU time of the whole machine for each operation, including unrelated load; the median of the rounds."""
        return 1000 * statistics.median(self.cpu_s)


async def in_turn(sides: Sequence[Side], rounds: int, on_round: Callable[[int], None]) -> None:
    """Run a warm-up round and ``rounds`` measured rounds of all sides. An error of a side is raised unchanged."""
    for number in range(rounds + 1):
        for side in sides:
            try:
                await side.round(counts=number > 0)
            except BaseExceptionGroup as group:
                raise _first(group) from None
        on_round(number)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def machine_busy_s() -> float:
    """Return the CPU seconds of all processors since boot; NaN if the machine does not report them."""
    try:
        ticks = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return math.nan
    return (sum(ticks) - ticks[_IDLE] - ticks[_WAITING]) / _TICKS_PER_S

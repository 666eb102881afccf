"""Ways to do the same, measured in turn: a round of the one, a round of the other, and so on.

So what the machine does beside the bench falls on all alike.
"""

import asyncio
import math
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Act = Callable[[], Awaitable[float]]
"""Do it once; the seconds of it that count."""

_STAT = Path("/proc/stat")
_TICKS_PER_S = 100  # USER_HZ, the unit of /proc/stat on every machine
_IDLE, _WAITING = 3, 4


@dataclass(slots=True)
class Side:
    """One way, done ``times`` a round, ``concurrency`` at once, and what was seen of it."""

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
        """Median of the rounds."""
        return statistics.median(self.rates)

    @property
    def cpu_ms(self) -> float:
        """Processor time of the whole machine for each, what has nothing to do with it too; median of the rounds."""
        return 1000 * statistics.median(self.cpu_s)


async def in_turn(sides: Sequence[Side], rounds: int, on_round: Callable[[int], None]) -> None:
    """One round before ``rounds`` warms all and does not count. The error of a side is raised as it is."""
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
    """Seconds that all processors together have worked since the machine started; NaN where it does not say."""
    try:
        ticks = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return math.nan
    return (sum(ticks) - ticks[_IDLE] - ticks[_WAITING]) / _TICKS_PER_S

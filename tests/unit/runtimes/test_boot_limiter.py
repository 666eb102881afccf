"""How many boots are let in at once: by what they take, by want of memory, in order of arrival."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from sandboxes.host.pressure import Pressure, Stall
from sandboxes.runtimes.boot_limiter import (
    MAX_PER_CORE,
    MIN_LIMIT,
    PAUSE_S,
    STRETCH,
    WINDOW_S,
    AdaptiveLimit,
    BootLimiter,
)

SHORT = Pressure(memory=Stall(some=0.5), memory_left=0.1)
CALM = Pressure()


class Machine:
    """Boots in ``alone_s``, ``width`` of them at once; more only wait for each other. Its backlog never ends."""

    def __init__(self, pace: AdaptiveLimit, *, width: int, alone_s: float = 0.01) -> None:
        self.pace = pace
        self.width = width
        self.alone_s = alone_s
        self.now = 0.0

    def boot(self, count: int) -> None:
        for _ in range(count):
            took_s = self.alone_s * max(1.0, self.pace.limit / self.width)
            self.now += took_s / self.pace.limit
            self.pace.record_boot(took_s, others_wait=True, now=self.now)

    def boot_alone(self) -> None:
        self.now += self.alone_s
        self.pace.record_boot(self.alone_s, others_wait=False, now=self.now)


@pytest.mark.parametrize(("cores", "width"), [(2, 2), (64, 6), (64, 50)])
def test_limit_grows_until_boots_slow_down(cores: int, width: int) -> None:
    """The scarce resource may be another one than the cores."""
    pace = AdaptiveLimit(cores)
    machine = Machine(pace, width=width)
    machine.boot_alone()
    machine.boot(1000)
    assert STRETCH[0] * width <= pace.limit <= STRETCH[1] * width + 1


def test_limit_of_many_cores_stays_below_maximum() -> None:
    pace = AdaptiveLimit(2)
    Machine(pace, width=100).boot(1000)
    assert pace.limit == 2 * MAX_PER_CORE


def test_limit_without_queued_boots_is_unchanged() -> None:
    pace = AdaptiveLimit(8)
    before = pace.limit
    for number in range(100):
        pace.record_boot(0.01, others_wait=False, now=float(number))
    assert pace.limit == before


def test_one_slow_boot_changes_limit_little() -> None:
    pace = AdaptiveLimit(8)
    machine = Machine(pace, width=8)
    machine.boot_alone()
    machine.boot(100)
    before = pace.limit
    pace.record_boot(60.0, others_wait=True, now=machine.now)
    assert pace.limit >= before - 1


def test_slow_boots_keep_minimum_limit() -> None:
    pace = AdaptiveLimit(64)
    pace.record_boot(0.01, others_wait=True, now=0.0)
    for _ in range(10_000):
        pace.record_boot(5.0, others_wait=True, now=1.0)
    assert pace.limit == MIN_LIMIT


def test_each_boot_timeout_lowers_limit() -> None:
    pace = AdaptiveLimit(64)
    before = pace.limit
    for _ in range(10):
        pace.record_timeout()
    assert pace.limit == before - 10
    for _ in range(1000):
        pace.record_timeout()
    assert pace.limit == MIN_LIMIT
    pace.record_pressure(SHORT, now=0.0)
    low = pace.limit
    pace.record_timeout()
    assert pace.limit == low < MIN_LIMIT


def test_minimum_boot_time_is_forgotten() -> None:
    pace = AdaptiveLimit(16)
    machine = Machine(pace, width=16)
    machine.boot_alone()
    machine.alone_s *= 10
    machine.boot(2000)
    low = pace.limit
    machine.now += 2 * WINDOW_S
    machine.boot_alone()
    machine.boot(2000)
    assert pace.limit > low


def test_memory_shortage_halves_limit_until_it_ends() -> None:
    pace = AdaptiveLimit(8)
    start = pace.limit
    pace.record_pressure(SHORT, now=0.0)
    assert pace.limit == start // 2
    pace.record_pressure(SHORT, now=PAUSE_S / 2)
    assert pace.limit == start // 2, "the kernel's figure follows slowly, and so do we"
    for second in range(1, 10):
        pace.record_pressure(SHORT, now=second * PAUSE_S)
    assert pace.limit == 1
    pace.record_pressure(CALM, now=100.0)
    machine = Machine(pace, width=8)
    machine.boot(1000)
    assert pace.limit >= start


def test_cpu_pressure_leaves_limit_unchanged() -> None:
    pace = AdaptiveLimit(2)
    before = pace.limit
    pace.record_pressure(Pressure(cpu=Stall(1.0), io=Stall(0.9), memory=Stall(0.9)), now=0.0)
    assert pace.limit == before


# The gate itself


def gate(*, pressure: Callable[[], Pressure] = lambda: CALM) -> BootLimiter:
    return BootLimiter(AdaptiveLimit(1), read=pressure)


class Boots:
    """Boots that end when their event is set, with the order in which they began."""

    def __init__(self, gate: BootLimiter) -> None:
        self.gate = gate
        self.begun: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}

    def begin(self, number: int) -> asyncio.Task[None]:
        self.ends[number] = asyncio.Event()
        return asyncio.create_task(self._boot(number))

    async def _boot(self, number: int) -> None:
        async with self.gate.turn():
            self.begun.append(number)
            await self.ends[number].wait()


async def settled() -> None:
    """Let all ready tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_boots_start_in_order_of_arrival() -> None:
    boots = Boots(gate())
    tasks = [boots.begin(number) for number in range(3 * MIN_LIMIT)]
    await settled()
    assert boots.begun == list(range(MIN_LIMIT))
    for number in range(3 * MIN_LIMIT):
        boots.ends[number].set()
        await settled()
    await asyncio.gather(*tasks)
    assert boots.begun == list(range(3 * MIN_LIMIT))


async def test_cancelled_boot_frees_its_turn() -> None:
    entrance = gate()
    boots = Boots(entrance)
    async with contextlib.AsyncExitStack() as others:
        for _ in range(MIN_LIMIT - 1):
            await others.enter_async_context(entrance.turn())
        async with entrance.turn():
            waiting = [boots.begin(number) for number in range(3)]
            await settled()
            waiting[0].cancel()
            await settled()
        waiting[1].cancel()  # its turn has come, and it does not know yet
        await settled()
        assert boots.begun == [2]
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    after = [boots.begin(100 + number) for number in range(MIN_LIMIT)]
    await settled()
    assert boots.begun[1:] == [100 + number for number in range(MIN_LIMIT)], "a turn was lost"
    for task in after:
        task.cancel()


async def test_failed_boot_frees_its_turn() -> None:
    entrance = gate()
    for _ in range(3 * MIN_LIMIT):
        with pytest.raises(ZeroDivisionError):
            async with entrance.turn():
                raise ZeroDivisionError


async def test_boot_timeout_is_recorded() -> None:
    pace = AdaptiveLimit(64)
    before = pace.limit
    with pytest.raises(TimeoutError):
        async with BootLimiter(pace, read=lambda: CALM).turn():
            raise TimeoutError
    assert pace.limit == before - 1


async def test_memory_shortage_is_read_at_next_boot() -> None:
    boots = Boots(gate(pressure=lambda: SHORT))
    tasks = [boots.begin(number) for number in range(MIN_LIMIT)]
    await settled()
    assert len(boots.begun) < MIN_LIMIT
    for task in tasks:
        task.cancel()

"""What a benchmark makes of what it sees."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from farm.bench.host_memory import in_use_mib, settled_mib
from farm.bench.interleave import Side, in_turn


def _telling(seen: list[str], name: str, *took_s: float) -> Callable[[], Awaitable[float]]:
    left = iter(took_s)

    async def act() -> float:
        seen.append(name)
        return next(left)

    return act


async def test_sides_alternate_and_warmup_round_is_not_counted() -> None:
    seen: list[str] = []
    rounds: list[int] = []
    ours = Side(_telling(seen, "ours", 9, 9, 0.001, 0.002, 0.003, 0.9), 2)
    theirs = Side(_telling(seen, "theirs", 9, 0.1, 0.2), 1)
    await in_turn((ours, theirs), 2, rounds.append)
    assert seen == ["ours", "ours", "theirs"] * 3
    assert rounds == [0, 1, 2]
    assert ours.took_s == [0.001, 0.002, 0.003, 0.9]
    assert ours.p50_ms == pytest.approx(2.5)
    assert theirs.p50_ms == pytest.approx(150)
    assert len(ours.rates) == len(ours.cpu_s) == 2


async def test_concurrent_actions_are_limited() -> None:
    at_work, most = 0, 0

    async def act() -> float:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0)
        at_work -= 1
        return 0.0

    side = Side(act, 50, 3)
    await side.round(counts=True)
    assert most == 3
    assert len(side.took_s) == 50


async def test_failed_action_raises_its_error_and_cancels_others() -> None:
    ended: list[str] = []

    async def act() -> float:
        try:
            if not ended:
                ended.append("failed")
                raise ValueError("why")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return 0.0

    with pytest.raises(ValueError, match=r"^why$"):
        await in_turn((Side(act, 2, 2),), 1, lambda _: None)
    assert ended == ["failed", "cancelled"]


def test_used_memory_excludes_free_memory_and_page_cache(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    kib = {"MemTotal": 10_240, "MemFree": 2048, "MemAvailable": 7, "Buffers": 1024, "Cached": 3072, "Shmem": 512}
    meminfo.write_text("".join(f"{name}:{value:12} kB\n" for name, value in kib.items()) + "HugePages_Total:       0\n")
    assert in_use_mib(meminfo) == 4.5


@pytest.mark.parametrize(
    ("readings", "settled", "taken"),
    [
        ([900, 400, 102, 100, 101, 103, 7], 101.5, 6),
        ([number * 10.0 for number in range(99)], 175.0, 20),
    ],
)
async def test_memory_is_read_once_stable_or_after_limit(readings: list[float], settled: float, taken: int) -> None:
    left = list(readings)

    async def pause(_: float) -> None: ...

    assert await settled_mib(lambda: left.pop(0), pause) == settled
    assert len(readings) - len(left) == taken

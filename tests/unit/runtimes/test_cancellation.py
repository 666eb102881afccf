"""Work that must be finished is finished, and a cancellation is not forgotten over it."""

import asyncio

import pytest

from sandboxes.cancellation import cancel_all, shielded


async def test_cancelled_shielded_work_completes_then_raises() -> None:
    gate, finished = asyncio.Event(), []

    async def work() -> None:
        await gate.wait()
        finished.append(True)

    task = asyncio.create_task(shielded(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished == [True]


async def test_shielded_work_returns_results_and_errors() -> None:
    async def answer() -> int:
        return 42

    async def fail() -> int:
        raise ZeroDivisionError

    assert await shielded(answer()) == 42
    with pytest.raises(ZeroDivisionError):
        await shielded(fail())


async def test_task_swallowing_cancellations_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxes.cancellation.RECANCEL_S", 0.01)
    swallowed: list[bool] = []

    async def deaf() -> None:
        while len(swallowed) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(True)

    async def breaks() -> None:
        raise ValueError

    tasks = [asyncio.create_task(work) for work in (deaf(), breaks(), asyncio.sleep(600))]
    await asyncio.sleep(0)
    await cancel_all(tasks)
    assert all(task.done() for task in tasks)
    assert len(swallowed) == 3
    await cancel_all([])

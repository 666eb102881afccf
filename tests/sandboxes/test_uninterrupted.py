"""Work that must be finished is finished, and a cancellation is not forgotten over it."""

import asyncio

import pytest

from sandboxes.uninterrupted import uninterrupted


async def test_two_cancellations_delay_nothing_and_are_told() -> None:
    gate, finished = asyncio.Event(), []

    async def work() -> None:
        await gate.wait()
        finished.append(True)

    task = asyncio.create_task(uninterrupted(work()))
    for _ in range(2):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished == [True]


async def test_results_and_errors_come_through() -> None:
    async def answer() -> int:
        return 42

    async def fail() -> int:
        raise ZeroDivisionError

    assert await uninterrupted(answer()) == 42
    with pytest.raises(ZeroDivisionError):
        await uninterrupted(fail())

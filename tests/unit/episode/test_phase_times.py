"""The agent's deadline does not count the time for which its policy is held."""

import asyncio

import pytest

from farm.episode.phase_times import AgentDeadline


class Held:
    """A policy that is held for a time that the test sets."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


async def test_deadline_ends_work_in_time() -> None:
    deadline = AgentDeadline(0.01, Held())
    with pytest.raises(TimeoutError):
        async with deadline:
            await asyncio.Event().wait()
    assert deadline.expired()


async def test_time_held_before_does_not_count() -> None:
    deadline = AgentDeadline(0.01, Held(1000.0))
    with pytest.raises(TimeoutError):
        async with deadline:
            await asyncio.Event().wait()


async def test_held_time_extends_the_deadline() -> None:
    held, began = Held(), asyncio.get_running_loop().time()
    deadline = AgentDeadline(0.02, held)
    asyncio.get_running_loop().call_soon(setattr, held, "seconds", 0.1)
    with pytest.raises(TimeoutError):
        async with deadline:
            await asyncio.Event().wait()
    assert asyncio.get_running_loop().time() - began >= 0.12


async def test_deadline_that_has_passed_ends_at_once() -> None:
    deadline = AgentDeadline(-1.0, Held())
    with pytest.raises(TimeoutError):
        async with deadline:
            await asyncio.Event().wait()


async def test_timely_work_leaves_no_timer() -> None:
    deadline = AgentDeadline(60.0, Held())
    async with deadline:
        await asyncio.sleep(0)
    assert not deadline.expired()
    assert deadline._timer is not None
    assert deadline._timer.cancelled()


async def test_other_cancellation_passes_through() -> None:
    async def work() -> None:
        async with AgentDeadline(60.0, Held()):
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

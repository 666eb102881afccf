"""Time limits that stop with the sandbox."""

import asyncio

import pytest

from sandboxes.toolserver.time_limits import TimeLimits


async def test_limit_ends_a_block() -> None:
    async def block() -> None:
        async with TimeLimits().limit(0.01):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await block()


@pytest.mark.parametrize("before", [True, False], ids=["paused before", "paused in the block"])
async def test_paused_limit_goes_on_with_the_time_that_is_left(before: bool) -> None:
    limits = TimeLimits()
    if before:
        limits.pause()
    went_on = False

    async def block() -> None:
        nonlocal went_on
        async with limits.limit(0.05):
            limits.pause()
            limits.pause()
            await asyncio.sleep(0.2)
            went_on = True
            limits.resume()
            limits.resume()
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await block()
    assert went_on

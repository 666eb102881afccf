"""Work that a cancellation may delay the news of but not cut short: clean-up, and calls whose effect must be known; and
cancellations that must not be lost themselves."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN_S = 1.0


async def shielded(work: Awaitable[T]) -> T:
    """Run ``work`` to its end. A cancellation that came meanwhile is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # seen: the cancellation is the news
    raise cancelled


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel all of them; they have ended, however they did, when this returns.

    One that goes on is cancelled again every second. In Python 3.11 ``asyncio.wait_for`` swallows a cancellation that
    comes as what it waits for ends, and redis-py sends under it: a loop that was told so once would sleep on.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # seen

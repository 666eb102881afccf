"""Run work to its end despite a cancellation, and cancel tasks that may swallow one."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

RECANCEL_S = 1.0


async def shielded(work: Awaitable[T]) -> T:
    """Await ``work`` to completion even if the caller is cancelled, then raise the cancellation."""
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
        task.exception()  # mark as retrieved, so that asyncio does not log it: the cancellation is raised instead
    raise cancelled


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel ``tasks``. Return when all have ended, however they ended.

    A task that is still running is cancelled again every second: in Python 3.11 ``asyncio.wait_for`` (which redis-py
    uses) swallows a cancellation that arrives when the awaited work ends.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        ended, pending = await asyncio.wait(pending, timeout=RECANCEL_S)
        for task in ended:
            if not task.cancelled():
                task.exception()  # mark as retrieved, so that asyncio does not log it

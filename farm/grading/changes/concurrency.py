"""Runs many small sandbox calls concurrently, with a bounded number in flight."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

IN_FLIGHT = 16

T = TypeVar("T")
R = TypeVar("R")


async def map_concurrently(items: Iterable[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """Return the results of ``call`` in the order of ``items``.

    The first exception cancels the other calls and is raised unchanged, without an exception group.
    """
    inputs = list(items)
    results: dict[int, R] = {}
    queue = iter(enumerate(inputs))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(IN_FLIGHT, len(inputs))):
                group.create_task(_drain(queue, call, results))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[index] for index in range(len(inputs))]


async def _drain(queue: Iterator[tuple[int, T]], call: Callable[[T], Awaitable[R]], results: dict[int, R]) -> None:
    for index, item in queue:
        results[index] = await call(item)

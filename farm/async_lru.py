"""A bounded cache of values that take a while to make."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class AsyncLru(Generic[K, V]):
    """Keep the ``size`` values that were used last. A value is made once, however many callers want it at a time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._locks: dict[K, asyncio.Lock] = {}

    def peek(self, key: K) -> V | None:
        """Return the value if it is kept. This does not count as a use."""
        return self._values.get(key)

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """Return the value of ``key``; ``make`` it if it is not kept. Raises what ``make`` raises."""
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._values:
                self._values[key] = await make()
            value = self._values[key]
        self._values.move_to_end(key)
        while len(self._values) > self._size:
            oldest, _ = self._values.popitem(last=False)
            self._locks.pop(oldest, None)
        return value

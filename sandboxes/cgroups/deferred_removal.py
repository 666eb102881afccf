"""Control groups that nothing is in any more, taken away between the starts of sandboxes and not amid one.

Where a group of memory goes, the kernel holds the lock of all groups while it looks through every mount of the machine
for what is counted there: beside a thousand sandboxes 3.5 ms, for which a start would wait.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandboxes.cancellation import cancel_all

MOST = 128
"""With so many waiting, what goes next goes at once: who starts and ends more without a pause waits for it."""

PAUSE_S = 0.02
"""So long no start has begun when one goes: most come in a row."""

TRIES = 100


class DeferredRemoval:
    """``take_away`` blocks; False where what has that name cannot go yet. What could not so many times as ``TRIES``
    says is none of ``names`` any more, so that the reaper sees it."""

    def __init__(self, take_away: Callable[[str], bool]) -> None:
        self._take_away = take_away
        self._names: dict[str, int] = {}
        """How often each may still be tried."""
        self._starts = self._begun = 0
        self._no_start = asyncio.Event()
        self._no_start.set()
        self._sweep: asyncio.Task[None] | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    @property
    def has_room(self) -> bool:
        return len(self._names) < MOST

    def add(self, name: str) -> None:
        self._names[name] = TRIES
        if self._sweep is None or self._sweep.done():
            self._sweep = asyncio.create_task(self._go_on())

    def forget(self, name: str) -> None:
        self._names.pop(name, None)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Nothing goes in this block."""
        self._starts += 1
        self._begun += 1
        self._no_start.clear()
        try:
            yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._no_start.set()

    async def stop(self) -> None:
        """Nothing goes any more, until something is added."""
        if self._sweep is not None:
            await cancel_all([self._sweep])

    async def _go_on(self) -> None:
        while self._names:
            await self._no_start.wait()
            begun = self._begun
            await asyncio.sleep(PAUSE_S)
            if self._begun == begun and self._names:
                name = next(iter(self._names))
                gone = await asyncio.to_thread(self._take, name)
                tries_left = self._names.pop(name, 1) - 1
                if not gone and tries_left:
                    self._names[name] = tries_left  # behind all others

    def _take(self, name: str) -> bool:
        """In a thread that may have come late, when a start has begun or the name is another's."""
        return self._no_start.is_set() and name in self._names and self._take_away(name)

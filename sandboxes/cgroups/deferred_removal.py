"""Remove empty cgroups while no sandbox is starting.

Removal of a memory cgroup holds the global cgroup lock while the kernel searches every mount of the machine: 3.5 ms
beside a thousand sandboxes, for which a start would wait.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandboxes.cancellation import cancel_all

MAX_WAITING = 128
"""Maximum number of waiting cgroups; a further one is removed at once."""

QUIET_S = 0.02
"""A cgroup is removed only if no sandbox was started for this time, because starts come in bursts."""

MAX_TRIES = 100


class DeferredRemoval:
    """A queue of cgroups to remove. ``try_remove`` blocks, and returns False if the cgroup cannot be removed yet.

    After ``MAX_TRIES`` failures a cgroup leaves ``names``, so that the reaper sees it.
    """

    def __init__(self, try_remove: Callable[[str], bool]) -> None:
        self._try_remove = try_remove
        self._names: dict[str, int] = {}
        """Name → remaining tries."""
        self._starts = self._start_count = 0
        self._no_start = asyncio.Event()
        self._no_start.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    @property
    def has_room(self) -> bool:
        return len(self._names) < MAX_WAITING

    def add(self, name: str) -> None:
        self._names[name] = MAX_TRIES
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def forget(self, name: str) -> None:
        self._names.pop(name, None)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Remove nothing inside the block."""
        self._starts += 1
        self._start_count += 1
        self._no_start.clear()
        try:
            yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._no_start.set()

    async def stop(self) -> None:
        """Stop removing until the next ``add``."""
        if self._task is not None:
            await cancel_all([self._task])

    async def _run(self) -> None:
        while self._names:
            await self._no_start.wait()
            start_count = self._start_count
            await asyncio.sleep(QUIET_S)
            if self._start_count == start_count and self._names:
                name = next(iter(self._names))
                removed = await asyncio.to_thread(self._remove_if_quiet, name)
                tries_left = self._names.pop(name, 1) - 1
                if not removed and tries_left:
                    self._names[name] = tries_left  # at the end of the queue

    def _remove_if_quiet(self, name: str) -> bool:
        """Remove ``name``, in a thread. Do nothing if a sandbox is starting, or the name is used again."""
        return self._no_start.is_set() and name in self._names and self._try_remove(name)

"""Flush the dirty data of sandboxes that were or will be copied early, because a copy waits until all is written."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sandboxes.cancellation import shielded
from sandboxes.runtimes.oci.storage.disk import SandboxDisk

CHECK_S, MAX_CHECK_S = 0.02, 0.32
"""Interval of checks of a writing sandbox, and maximum for an idle one, for which it doubles with each check."""
MIN_DIRTY_MIB = 8
"""Minimum of dirty data to flush: a copy waits about 5 ms for it. A flush is a transaction that delays others 1 ms."""


@dataclass(slots=True)
class _Schedule:
    """When a sandbox is checked next."""

    interval_s: float = CHECK_S
    next_at: float = 0.0


class EarlyWriteback:
    """Flushes copied sandboxes only: others often delete data before it is ever written to disk."""

    def __init__(self, disk: Callable[[], SandboxDisk]) -> None:
        self._disk = disk
        self._schedules: dict[str, _Schedule] = {}
        self._task: asyncio.Task[None] | None = None

    def begin(self, name: str) -> None:
        """Start to flush ``name``, which was copied and may be again, or will be."""
        self._schedules[name] = _Schedule()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def end(self, name: str) -> None:
        self._schedules.pop(name, None)

    async def close(self) -> None:
        """Stop. No flush is running when this returns."""
        self._schedules.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while self._schedules:
            began = time.monotonic()
            due = {name: schedule for name, schedule in self._schedules.items() if schedule.next_at <= began}
            writing = await shielded(asyncio.to_thread(self._flush, tuple(due))) if due else set()
            for name, schedule in due.items():
                schedule.interval_s = CHECK_S if name in writing else min(2 * schedule.interval_s, MAX_CHECK_S)
                schedule.next_at = time.monotonic() + schedule.interval_s
            # Rest as long as the flushes took, so that a constant writer does not keep the disk busy with transactions.
            await asyncio.sleep(max(CHECK_S, time.monotonic() - began))

    def _flush(self, names: Collection[str]) -> set[str]:
        """Flush ``names``. Return those with dirty data."""
        disk, writing = self._disk(), set()
        for name in names:
            dirty = disk.dirty_mib(name)
            if dirty:
                writing.add(name)
            if dirty >= MIN_DIRTY_MIB:
                disk.flush(name)
        return writing

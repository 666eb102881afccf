"""What sandboxes write that were copied once, or will be, is written down soon, for a copy waits until all of it is."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sandboxes.cancellation import shielded
from sandboxes.runtimes.oci.storage.disk import SandboxDisk

LOOK_S, LONGEST_S = 0.02, 0.32
"""Between two looks at one that writes; at one that does not it is twice as long each time, up to the second."""
LEAST_MIB = 8
"""A copy waits some 5 ms for as much. Each time is a transaction of the disk, for which others wait some 1 ms."""


@dataclass(slots=True)
class _Looks:
    rest_s: float = LOOK_S
    next_at: float = 0.0


class EarlyWriteback:
    """Those that are never copied pay nothing: much of what they write goes again before it is ever written down."""

    def __init__(self, disk: Callable[[], SandboxDisk]) -> None:
        self._disk = disk
        self._copied: dict[str, _Looks] = {}
        self._looking: asyncio.Task[None] | None = None

    def begin(self, name: str) -> None:
        """``name`` was copied, and may be again, or will be."""
        self._copied[name] = _Looks()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def end(self, name: str) -> None:
        self._copied.pop(name, None)

    async def close(self) -> None:
        """Nothing is written on its account when this returns."""
        self._copied.clear()
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking

    async def _look(self) -> None:
        while self._copied:
            began = time.monotonic()
            due = {name: looks for name, looks in self._copied.items() if looks.next_at <= began}
            writing = await shielded(asyncio.to_thread(self._write_down, tuple(due))) if due else set()
            for name, looks in due.items():
                looks.rest_s = LOOK_S if name in writing else min(2 * looks.rest_s, LONGEST_S)
                looks.next_at = time.monotonic() + looks.rest_s
            # As long a rest as that took, so that nobody who only writes keeps the disk busy with transactions.
            await asyncio.sleep(max(LOOK_S, time.monotonic() - began))

    def _write_down(self, names: Collection[str]) -> set[str]:
        """Those of ``names`` that have something unwritten."""
        disk, writing = self._disk(), set()
        for name in names:
            unwritten = disk.unwritten_mib(name)
            if unwritten:
                writing.add(name)
            if unwritten >= LEAST_MIB:
                disk.write_down(name)
        return writing

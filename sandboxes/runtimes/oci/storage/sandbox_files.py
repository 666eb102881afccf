"""The files of an owner's sandboxes and snapshots, a directory of its disk for each.

What changes the disk waits for it, at times for as long as it takes to write down all that is dirty; so that is done
in threads, of which nobody else's work takes one.
"""

import asyncio
import json
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sandboxes.cancellation import shielded
from sandboxes.linux.small_files import write_small_file
from sandboxes.runtimes.oci.host import OciHost
from sandboxes.runtimes.oci.storage.disk import SandboxDisk
from sandboxes.runtimes.oci.storage.early_writeback import EarlyWriteback
from sandboxes.runtimes.oci.storage.sandbox_dir import listen, make_empty, make_fresh, root_of
from sandboxes.runtimes.oci.uid_ranges import UidRanges

THREADS = 8

T = TypeVar("T")


class SandboxFiles:
    """``mapped``: those of each belong to users of its own."""

    def __init__(self, ground: OciHost, *, mapped: bool) -> None:
        self._ground = ground
        self._mapped = mapped
        self._ranges = UidRanges()
        self._early = EarlyWriteback(lambda: ground.disk)
        self._threads = ThreadPoolExecutor(THREADS, "disk of sandboxes")
        self._reclaiming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reclaiming.set_result(None)

    @property
    def _disk(self) -> SandboxDisk:
        return self._ground.disk

    def place(self, name: str) -> Path:
        return self._disk.path / name

    def names(self) -> set[str]:
        return self._disk.names()

    def failure(self) -> str:
        """Why nothing there can be relied on any more; "" where it can."""
        return self._disk.failure()

    async def renew(self) -> None:
        """Of a disk that failed. Raises RuntimeUnavailable."""
        await self.settled()
        await self._early.close()
        await self._in_thread(self._ground.renew_disk)

    async def have_room(self) -> None:
        """What was removed can be written anew where it is needed."""
        if self._disk.is_short():
            await self._in_thread(self._disk.reclaim)

    async def lay_out(
        self,
        name: str,
        limit_mib: int,
        described: Callable[[int], dict[str, Any]],
        listener: socket.socket,
        *,
        copied: bool,
    ) -> int:
        """Make its directory, or take what was ``copied`` there, with the OCI bundle, as it is ``described`` for whom
        root inside is outside, and a socket that listens; who that is. Raises DiskFull and OSError."""
        if not copied:
            self._ranges.hold(name, self._ranges.free() if self._mapped else 0)
        root = await self._in_thread(self._lay_out, name, limit_mib, described, listener, copied)
        self._ranges.hold(name, root)
        return root

    def _lay_out(
        self,
        name: str,
        limit_mib: int,
        described: Callable[[int], dict[str, Any]],
        listener: socket.socket,
        copied: bool,
    ) -> int:
        place = self.place(name)
        if copied:
            make_fresh(place)
        else:
            self._disk.make(name, limit_mib)
            make_empty(place, self._ranges.of(name))
        root = root_of(place)
        write_small_file(place / "config.json", json.dumps(described(root)), os.O_CREAT | os.O_TRUNC)
        listen(listener, place)
        return root

    def take_over(self, name: str) -> None:
        """Of a sandbox that outlived its owner."""
        self._ranges.hold(name, root_of(self.place(name)))

    def write_early(self, name: str) -> None:
        """It will be copied, or was and may be again."""
        self._early.begin(name)

    async def copy(self, source: str, name: str, limit_mib: int) -> None:
        """Raises DiskFull and OSError."""
        await self._in_thread(self._disk.copy, source, name, limit_mib)

    async def remove(self, name: str) -> None:
        """Nothing there is no error."""
        self._early.end(name)
        await self._in_thread(self._disk.remove, name)
        self._ranges.drop(name)
        if self._disk.has_leavings() and self._reclaiming.done():
            self._reclaiming = asyncio.get_running_loop().run_in_executor(self._threads, self._disk.reclaim)

    async def settled(self) -> None:
        """Nothing is reclaimed any more."""
        await asyncio.wait({self._reclaiming})

    async def close(self) -> None:
        await self._early.close()

    async def _in_thread(self, work: Callable[..., T], *told: Any) -> T:
        return await shielded(asyncio.get_running_loop().run_in_executor(self._threads, work, *told))

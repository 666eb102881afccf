"""The files of an owner's sandboxes and snapshots: a directory of its disk for each.

A change of the disk can block until all dirty data is written, so it runs in a thread pool of its own.
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
from sandboxes.runtimes.oci.storage.sandbox_dir import listen, make_empty, reset_copy, root_of
from sandboxes.runtimes.oci.uid_ranges import UidRanges

THREADS = 8

T = TypeVar("T")


class SandboxFiles:
    """The directories of sandboxes and snapshots. ``mapped``: each sandbox has its own range of user ids."""

    def __init__(self, host: OciHost, *, mapped: bool) -> None:
        self._host = host
        self._mapped = mapped
        self._ranges = UidRanges()
        self._early = EarlyWriteback(lambda: host.disk)
        self._threads = ThreadPoolExecutor(THREADS, "disk of sandboxes")
        self._reclaiming: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reclaiming.set_result(None)

    @property
    def _disk(self) -> SandboxDisk:
        return self._host.disk

    def sandbox_dir(self, name: str) -> Path:
        return self._disk.path / name

    def names(self) -> set[str]:
        return self._disk.names()

    def failure(self) -> str:
        """Return why no data on the disk is reliable any more, "" if it is."""
        return self._disk.failure()

    async def renew(self) -> None:
        """Replace a failed disk. Raises RuntimeUnavailable."""
        await self.wait_reclaimed()
        await self._early.close()
        await self._in_thread(self._host.renew_disk)

    async def ensure_space(self) -> None:
        """Reclaim the space of removed data if the next sandbox needs it."""
        if self._disk.needs_reclaim():
            await self._in_thread(self._disk.reclaim)

    async def prepare(
        self,
        name: str,
        limit_mib: int,
        make_config: Callable[[int], dict[str, Any]],
        listener: socket.socket,
        *,
        copied: bool,
    ) -> int:
        """Make the directory of a sandbox, or reset a ``copied`` one, with its OCI bundle and a listening socket.

        ``make_config``: returns the OCI configuration for the first user id. Return that id, the uid outside of root
        inside. Raises DiskFull and OSError.
        """
        if not copied:
            self._ranges.hold(name, self._ranges.free() if self._mapped else 0)
        root = await self._in_thread(self._prepare, name, limit_mib, make_config, listener, copied)
        self._ranges.hold(name, root)
        return root

    def _prepare(
        self,
        name: str,
        limit_mib: int,
        make_config: Callable[[int], dict[str, Any]],
        listener: socket.socket,
        copied: bool,
    ) -> int:
        sandbox_dir = self.sandbox_dir(name)
        if copied:
            reset_copy(sandbox_dir)
        else:
            self._disk.make(name, limit_mib)
            make_empty(sandbox_dir, self._ranges.of(name))
        root = root_of(sandbox_dir)
        write_small_file(sandbox_dir / "config.json", json.dumps(make_config(root)), os.O_CREAT | os.O_TRUNC)
        listen(listener, sandbox_dir)
        return root

    def take_over(self, name: str) -> None:
        """Reserve the ids of a sandbox of an earlier process."""
        self._ranges.hold(name, root_of(self.sandbox_dir(name)))

    def start_early_writeback(self, name: str) -> None:
        """Flush ``name`` early from now on: it was or will be copied."""
        self._early.begin(name)

    async def copy(self, source: str, name: str, limit_mib: int) -> None:
        """Copy a directory. Raises DiskFull and OSError."""
        await self._in_thread(self._disk.copy, source, name, limit_mib)

    async def remove(self, name: str) -> None:
        """Remove a directory. A missing one is no error."""
        self._early.end(name)
        await self._in_thread(self._disk.remove, name)
        self._ranges.drop(name)
        if self._disk.should_reclaim() and self._reclaiming.done():
            self._reclaiming = asyncio.get_running_loop().run_in_executor(self._threads, self._disk.reclaim)

    async def wait_reclaimed(self) -> None:
        """Wait until no reclaim is running."""
        await asyncio.wait({self._reclaiming})

    async def close(self) -> None:
        await self._early.close()

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await shielded(asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments))

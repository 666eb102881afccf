"""The first process of a sandbox, seen from outside."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from sandboxes.errors import BootError
from sandboxes.runtimes.oci.starter import Starter
from sandboxes.toolserver.client import ToolServer

FOREVER_S = 86_400.0


class InitProcess:
    """``status`` is None until it is known how it ended, and stays so where it was another starter's."""

    def __init__(self, pid: int, starter: Starter) -> None:
        """Raises ProcessLookupError where it has ended and is reaped."""
        self.pid = pid
        self.status: int | None = None
        self._fd = os.pidfd_open(pid)
        self._starter = starter
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._told: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._fd, self._see_end)

    async def until_ended(self, timeout_s: float) -> bool:
        """It has ended when no process in its namespace is left. False where it lives on."""
        return bool((await asyncio.wait({self._ended}, timeout=timeout_s))[0])

    async def until_told(self, timeout_s: float) -> bool:
        """``status`` is known; the starter says so a moment after the end."""
        return bool((await asyncio.wait({self._told}, timeout=timeout_s))[0])

    async def server(self, path: Path, image: str, *, listener: int | None) -> ToolServer:
        """The one that listens at ``path``, once it has answered. Raises BootError where this process ends before."""
        # The caller bounds the time.
        attempt = asyncio.create_task(ToolServer.connect(path, expected_pid=listener, timeout_s=FOREVER_S))
        try:
            either: set[asyncio.Future[Any]] = {attempt, self._ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                return attempt.result()
            raise BootError(f"a sandbox of {image} ended before it answered, with status {self.status}")
        finally:
            attempt.cancel()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self._starter.forget(self.pid)
        os.close(self._fd)

    def _see_end(self) -> None:
        self._loop.remove_reader(self._fd)
        self._starter.ask_end(self.pid, self._note)
        self._ended.set_result(None)

    def _note(self, status: int | None) -> None:
        self.status = status
        self._told.set_result(None)

"""The init process of a sandbox, handled from outside by its pidfd."""

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
    """``status``: None until the exit status is known; it stays None for a process of another starter."""

    def __init__(self, pid: int, starter: Starter) -> None:
        """Open the process. Raises ProcessLookupError if it has ended and was reaped."""
        self.pid = pid
        self.status: int | None = None
        self._fd = os.pidfd_open(pid)
        self._starter = starter
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._status_known: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._fd, self._on_end)

    async def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until the process has ended, as the last of its PID namespace. Return False if it lives."""
        return bool((await asyncio.wait({self._ended}, timeout=timeout_s))[0])

    async def wait_for_status(self, timeout_s: float) -> bool:
        """Wait until ``status`` is known, a moment after the end. Return False if it is not."""
        return bool((await asyncio.wait({self._status_known}, timeout=timeout_s))[0])

    async def server(self, path: Path, image: str, *, listener: int | None) -> ToolServer:
        """Return the tool server that listens at ``path`` when it has answered. The caller sets the time-out.

        Raises BootError if this process ends before that.
        """
        attempt = asyncio.create_task(ToolServer.connect(path, expected_pid=listener, timeout_s=FOREVER_S))
        try:
            either: set[asyncio.Future[Any]] = {attempt, self._ended}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                return attempt.result()
            raise BootError(f"a sandbox of {image} ended before its tool server answered, with status {self.status}")
        finally:
            attempt.cancel()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        self._starter.forget(self.pid)
        os.close(self._fd)

    def _on_end(self) -> None:
        self._loop.remove_reader(self._fd)
        self._starter.request_exit_status(self.pid, self._set_status)
        self._ended.set_result(None)

    def _set_status(self, status: int | None) -> None:
        self.status = status
        self._status_known.set_result(None)

"""Kill a child process whose output was not read to the end."""

import asyncio
import contextlib
import os
import signal

_CHUNK = 65536


async def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kill a process that leads a process group, with its group. Return when the process has ended.

    Its output is read to the end and dropped. In Python 3.11 ``wait`` returns only when the pipes are closed, and a
    pipe stays open if asyncio has paused reading because too much was written. No other task may read the pipes.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdout, process.stderr):
        while pipe is not None and await pipe.read(_CHUNK):
            pass
    await process.wait()

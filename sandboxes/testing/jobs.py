"""Background jobs of a fake sandbox: without a terminal, and no program reads input."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from sandboxes.errors import JobError
from sandboxes.interface import JobOutput
from sandboxes.testing.programs import Streams, captured, streams_of
from sandboxes.testing.shell import FakeShell, Processes, ShellExit

OUTPUT_MAX = 28_000

T = TypeVar("T")


@dataclass
class FakeJob:
    tree: str
    streams: Streams
    task: asyncio.Task[int]
    started: float
    sent_bytes: int = 0
    duration_s: float = 0.0


class WithJobs(ABC):
    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._jobs: dict[int, FakeJob] = {}

    @abstractmethod
    async def _call(self, work: Coroutine[Any, Any, T]) -> T: ...

    @abstractmethod
    def _shell_of(self, session: str) -> FakeShell: ...

    async def start_job(self, command: str, *, session: str = "main", call_id: str | None = None) -> int:
        async def start() -> int:
            shell = self._shell_of(session).child()
            shell.tree, streams = f"job {shell.pid}", streams_of(b"", True)
            task = self._processes.start(shell.tree, shell.pid, shell.run(command, streams))
            job = self._jobs[len(self._jobs) + 1] = FakeJob(shell.tree, streams, task, time.monotonic())
            task.add_done_callback(lambda _: _note_end(job))
            return len(self._jobs)

        return await self._call(start())

    async def job_output(
        self, job: int, *, wait_s: float = 0.0, quiet_s: float = 0.0, call_id: str | None = None
    ) -> JobOutput:
        async def read() -> JobOutput:
            found = self._job(job)
            limit, length = time.monotonic() + wait_s, found.sent_bytes
            while not found.task.done() and time.monotonic() < limit:
                await asyncio.wait({found.task}, timeout=min(quiet_s or wait_s, limit - time.monotonic()))
                if quiet_s and len(found.streams.out) > found.sent_bytes and len(found.streams.out) == length:
                    break
                length = len(found.streams.out)
            output = captured(found.streams.out[found.sent_bytes :], OUTPUT_MAX)
            found.sent_bytes = len(found.streams.out)
            exit_code = _exit_code(found.task) if found.task.done() else None
            return JobOutput(output, exit_code, found.duration_s or time.monotonic() - found.started)

        return await self._call(read())

    async def job_input(self, job: int, data: bytes, *, timeout_s: float = 5.0) -> int:
        async def take() -> int:
            if self._job(job).task.done():
                raise JobError(f"background job {job} takes no more input: it has ended")
            return 0

        return await self._call(take())

    async def end_job(self, job: int) -> None:
        async def end() -> None:
            await self._processes.kill(self._job(job).tree)

        await self._call(end())

    def _job(self, number: int) -> FakeJob:
        job = self._jobs.get(number)
        if job is None:
            raise JobError(f"there is no background job {number}")
        return job


def _note_end(job: FakeJob) -> None:
    job.duration_s = time.monotonic() - job.started


def _exit_code(task: asyncio.Task[int]) -> int:
    try:
        return task.result()
    except ShellExit as end:
        return end.status
    except asyncio.CancelledError:
        return 128 + 9

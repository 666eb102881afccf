"""The pool of indexing processes: started on demand, replaced when one dies."""

import asyncio
import contextlib
import logging
import mmap
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

from sandboxes.cancellation import shielded
from sandboxes.search.errors import BadIndex, IndexingFailed
from sandboxes.search.index.segment import SourceFile
from sandboxes.search.index.segment_format import FRAME_MAX, LENGTH, encode, unpack
from sandboxes.search.workers.fair_queue import CpuBudget, FairQueue, least_taken

MIB = 1024 * 1024
PORTION_BYTES = 2 * MIB
"""Bytes of files in one request; small, so that waiters get a process soon."""

BASE_S, PER_MIB_S = 2.0, 2.0
"""Maximum CPU seconds of a request: a base, and seconds for each MiB. About 3 MiB are indexed in a second."""

MOST_S = 60.0
"""Maximum wall seconds of a request, for a busy machine or a process that hostile text controls."""


_CPU_LIMIT_EXITS = (-signal.SIGPROF, -signal.SIGVTALRM)
"""Exit codes of a process that exceeded the CPU time of a file or of a request."""

MAX_UNPARSED = 8
"""Maximum files of a request that may be excluded from parsing one by one; after that no file of it is parsed."""


@dataclass(frozen=True, slots=True)
class Built:
    """A packed segment. ``poor``: no file was parsed, although parsing was requested; a later build may succeed."""

    data: bytes
    poor: bool = False


class RequestFailed(Exception):
    """A request failed. ``slow``: it exceeded its time. ``at``: index of the file being read; None if unknown."""

    def __init__(self, message: str, *, slow: bool, at: int | None) -> None:
        super().__init__(message)
        self.slow = slow
        self.at = at


log = logging.getLogger(__name__)


class Workers:
    """At most ``most`` processes, each serving one request at a time and started on demand."""

    def __init__(self, embedder: str, most: int) -> None:
        self.most = most
        self._embedder = embedder
        self._idle: list[asyncio.subprocess.Process] = []
        self._progress: WeakKeyDictionary[asyncio.subprocess.Process, mmap.mmap] = WeakKeyDictionary()
        self._turns = FairQueue(most)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes. No build may be in progress."""
        await shielded(self._end(*self._idle))
        self._idle.clear()

    async def build(self, files: Sequence[SourceFile], budgets: Sequence[CpuBudget], *, rough: bool = False) -> Built:
        """Build a segment of the files. Raises IndexingFailed.

        The first of ``budgets`` is charged; the queue position is that of the budget with the least CPU time used. If a
        file crashes a process, it is retried once, because the machine may have been the cause. If it crashes a process
        again, or is too slow, it is not parsed. ``rough``: no file is parsed or embedded.
        """
        everything = frozenset(range(len(files)))
        unparsed, tries = everything if rough else frozenset[int](), 0
        while True:
            async with self._turns.turn(lambda: least_taken(budgets)):
                try:
                    data = await self._request(files, unparsed, rough, budgets)
                    return Built(data, poor=not rough and unparsed == everything)
                except RequestFailed as failure:
                    log.warning("an indexing process failed on %d files: %s", len(files), failure)
                    slow, at = failure.slow, failure.at
            tries += 1
            if not slow and tries == 1:
                continue
            if unparsed == everything:
                raise IndexingFailed("the indexing process fails on these files")
            is_identified = at is not None and at not in unparsed and len(unparsed) < MAX_UNPARSED
            unparsed, tries = unparsed | {at} if is_identified and at is not None else everything, 0

    async def _request(
        self, files: Sequence[SourceFile], unparsed: frozenset[int], rough: bool, budgets: Sequence[CpuBudget]
    ) -> bytes:
        process = self._idle.pop() if self._idle else await self._start()
        limit_s = BASE_S + PER_MIB_S * sum(len(file.content) for file in files) / MIB
        start_s = _cpu_s(process)
        try:
            request = {
                "files": [(file.path, file.digest, file.content) for file in files],
                "unparsed": sorted(unparsed),
                "embedded": not rough,
                "seconds": limit_s,
            }
            async with asyncio.timeout(MOST_S):
                await _send(process, request)
                answer = await _receive(process)
            # Hostile text may control the process, so check that its answer is consistent.
            await asyncio.to_thread(unpack, answer) if len(answer) > MIB else unpack(answer)
        except BaseException as error:
            await shielded(self._end(process))
            _charge(budgets, limit_s)
            if not isinstance(error, (TimeoutError, OSError, asyncio.IncompleteReadError, BadIndex)):
                raise
            slow = isinstance(error, TimeoutError) or process.returncode in _CPU_LIMIT_EXITS
            at = int.from_bytes(self._progress[process][:LENGTH], "little")
            reason = f"they take more than {limit_s:.1f} s" if slow else str(error)
            raise RequestFailed(reason, slow=slow, at=at if at < len(files) else None) from None
        _charge(budgets, _cpu_s(process) - start_s)
        self._idle.append(process)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # A shared page: a killed process cannot report any more which file it was reading.
        page = os.memfd_create("progress")
        os.ftruncate(page, mmap.PAGESIZE)
        progress = mmap.mmap(page, mmap.PAGESIZE)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "sandboxes.search.workers.worker", str(page)),
                stdin=pipe,
                stdout=pipe,
                pass_fds=(page,),
                # Nothing of this process's environment, which holds tokens.
                env={"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
        finally:
            os.close(page)
        self._progress[process] = progress
        try:
            await _send(process, self._embedder)
        except BaseException:
            await shielded(self._end(process))
            raise
        return process

    async def _end(self, *processes: asyncio.subprocess.Process) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # also closes its pipes


def _charge(budgets: Sequence[CpuBudget], seconds: float) -> None:
    if budgets:
        budgets[0].take(seconds)


def _cpu_s(process: asyncio.subprocess.Process) -> float:
    """Return the CPU time that the process used since its start; 0 if the process is gone."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return 0.0
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def _send(process: asyncio.subprocess.Process, message: Any) -> None:
    data = encode(message)
    assert process.stdin
    process.stdin.write(len(data).to_bytes(LENGTH, "little"))
    process.stdin.write(data)
    await process.stdin.drain()


async def _receive(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout
    length = int.from_bytes(await process.stdout.readexactly(LENGTH), "little")
    if length > FRAME_MAX:
        raise BadIndex(f"the answer has {length} bytes; at most {FRAME_MAX} are allowed")
    return await process.stdout.readexactly(length)

"""The processes that read hostile text, from outside: started when needed, replaced when one dies."""

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
"""Of files that are read at once, so that those who wait for a process get one soon."""

LEAST_S, PER_MIB_S = 2.0, 2.0
"""So much processor time may files take. Some 3 MiB are read in a second."""

MOST_S = 60.0
"""So long may it take however busy the machine, and whoever has taken the process over."""


_TIMES_UP = (-signal.SIGPROF, -signal.SIGVTALRM)
"""How the process ends that has used up the time of a file, or of all."""

MOST_BLAMED = 8
"""So many files may bring processes down before all that are read with them are read as they are."""


@dataclass(frozen=True, slots=True)
class Built:
    """A packed segment. ``poor``: no file was parsed, though that was asked for; another time they may be."""

    data: bytes
    poor: bool = False


class Failed(Exception):
    """``slow``: the files took too long. ``at``: the number of the one that was being read, where that can be told."""

    def __init__(self, message: str, *, slow: bool, at: int | None) -> None:
        super().__init__(message)
        self.slow = slow
        self.at = at


log = logging.getLogger(__name__)


class Workers:
    """At most ``most`` processes, each of which does one thing at a time; none is started before it is needed."""

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
        """Nothing may be under way any more."""
        await shielded(self._end(*self._idle))
        self._idle.clear()

    async def build(self, files: Sequence[SourceFile], askers: Sequence[CpuBudget], *, rough: bool = False) -> Built:
        """A segment of the files. Raises IndexingFailed.

        The first of ``askers`` is charged, and all of them wait as the one that has taken the least. A file that brings
        a process down is tried again, for it may have been the machine; and then, as one that keeps it too long, is not
        parsed. ``rough``: none is, nor is any read for its meaning.
        """
        everything = frozenset(range(len(files)))
        unparsed, tries = everything if rough else frozenset[int](), 0
        while True:
            async with self._turns.turn(lambda: least_taken(askers)):
                try:
                    data = await self._built(files, unparsed, rough, askers)
                    return Built(data, poor=not rough and unparsed == everything)
                except Failed as failure:
                    log.warning("an indexing process failed on %d files: %s", len(files), failure)
                    slow, at = failure.slow, failure.at
            tries += 1
            if not slow and tries == 1:
                continue
            if unparsed == everything:
                raise IndexingFailed("the indexing process fails on these files")
            known = at is not None and at not in unparsed and len(unparsed) < MOST_BLAMED
            unparsed, tries = unparsed | {at} if known and at is not None else everything, 0

    async def _built(
        self, files: Sequence[SourceFile], unparsed: frozenset[int], rough: bool, askers: Sequence[CpuBudget]
    ) -> bytes:
        process = self._idle.pop() if self._idle else await self._start()
        limit_s = LEAST_S + PER_MIB_S * sum(len(file.content) for file in files) / MIB
        before_s = _processor_s(process)
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
            # What was read may have taken the process over; what it then says must at least hold together.
            await asyncio.to_thread(unpack, answer) if len(answer) > MIB else unpack(answer)
        except BaseException as error:
            await shielded(self._end(process))
            _charge(askers, limit_s)
            if not isinstance(error, (TimeoutError, OSError, asyncio.IncompleteReadError, BadIndex)):
                raise
            slow = isinstance(error, TimeoutError) or process.returncode in _TIMES_UP
            at = int.from_bytes(self._progress[process][:LENGTH], "little")
            told = f"they take more than {limit_s:.1f} s" if slow else str(error)
            raise Failed(told, slow=slow, at=at if at < len(files) else None) from None
        _charge(askers, _processor_s(process) - before_s)
        self._idle.append(process)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # A page that both see, for who is killed can no longer say what it was reading.
        page = os.memfd_create("progress")
        os.ftruncate(page, mmap.PAGESIZE)
        progress = mmap.mmap(page, mmap.PAGESIZE)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "sandboxes.search.workers.worker", str(page)),
                stdin=pipe,
                stdout=pipe,
                pass_fds=(page,),
                # None of this process's own, which holds tokens.
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
            await process.communicate()  # closes its pipes too


def _charge(askers: Sequence[CpuBudget], seconds: float) -> None:
    if askers:
        askers[0].take(seconds)


def _processor_s(process: asyncio.subprocess.Process) -> float:
    """What it has taken since it began; 0 where it is gone."""
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
        raise BadIndex(f"an answer of {length} bytes")
    return await process.stdout.readexactly(length)

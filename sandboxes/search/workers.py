"""The processes that read hostile text, from outside: started when needed, replaced when one dies."""

import asyncio
import contextlib
import logging
import math
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from sandboxes.search.errors import BadIndex, IndexingFailed
from sandboxes.search.packing import FRAME_MAX, LENGTH, encode, unpack
from sandboxes.search.segment import SourceFile
from sandboxes.uninterrupted import uninterrupted

LEAST_S, PER_MIB_S = 20, 3
"""So long may files take, however busy the machine. Some 3 MiB are read in a second on an idle core."""

MIB = 1024 * 1024

log = logging.getLogger(__name__)


class Workers:
    """At most ``most`` processes, each of which does one thing at a time; none is started before it is needed."""

    def __init__(self, embedder: str, most: int) -> None:
        self.most = most
        self._embedder = embedder
        self._idle: list[asyncio.subprocess.Process] = []
        self._turns = asyncio.Semaphore(most)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing may be under way any more."""
        await uninterrupted(self._end(*self._idle))
        self._idle.clear()

    async def build(self, files: Sequence[SourceFile]) -> bytes:
        """A packed segment of the files. Raises IndexingFailed.

        Files that bring a process down, or keep it too long, are tried again, for it may have been the machine; and
        then without being parsed.
        """
        async with self._turns:
            for plain in (False, False, True):
                try:
                    return await self._built(files, plain)
                except (OSError, asyncio.IncompleteReadError, BadIndex) as error:
                    log.warning("an indexing process failed on %d files: %s", len(files), error)
        raise IndexingFailed("the indexing process fails on these files")

    async def _built(self, files: Sequence[SourceFile], plain: bool) -> bytes:
        process = self._idle.pop() if self._idle else await self._start()
        try:
            size = sum(len(file.content) for file in files)
            request = {
                "files": [(file.path, file.digest, file.content) for file in files],
                "plain": plain,
                "seconds": LEAST_S + math.ceil(size / MIB * PER_MIB_S),
            }
            await _send(process, request)
            answer = await _receive(process)
            # What was read may have taken the process over; what it then says must at least hold together.
            await asyncio.to_thread(unpack, answer) if len(answer) > MIB else unpack(answer)
        except BaseException:
            await uninterrupted(self._end(process))
            raise
        self._idle.append(process)
        return answer

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandboxes.search.worker", stdin=pipe, stdout=pipe, start_new_session=True
        )
        try:
            await _send(process, self._embedder)
        except BaseException:
            await uninterrupted(self._end(process))
            raise
        return process

    async def _end(self, *processes: asyncio.subprocess.Process) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # closes its pipes too


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

"""Indexes of trees: each made once, kept in a directory, shared by all sandboxes that hold the same files."""

import asyncio
import contextlib
import hashlib
import logging
import math
import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sandboxes.interface import Sandbox
from sandboxes.search.embeddings.select import NONE, WORDS, load_embedder
from sandboxes.search.embeddings.word_table import Embedder
from sandboxes.search.errors import BadIndex
from sandboxes.search.index.index import Index
from sandboxes.search.index.segment import IndexSegment, SourceFile
from sandboxes.search.index.segment_format import unpack
from sandboxes.search.ranking import Hit, Part, Question, search
from sandboxes.search.sandbox_index import SandboxIndex
from sandboxes.search.workers.fair_queue import CpuBudget
from sandboxes.search.workers.pool import PORTION_BYTES, Built, Workers

GIB = 1024**3
FORM = 1
"""Of what an index holds; to be raised whenever another one would come of the same files."""

_WORTH_A_PROCESS, _LEAST_WEIGHT = 256 * 1024, 512
_AT_HAND = 64
_NEAR = 4
_SUFFIX = ".index"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _IndexBuild:
    """``askers``: those who wait for it, who may become more."""

    task: asyncio.Task[Index]
    askers: list[CpuBudget]


class IndexStore:
    """To be used by one event loop, from ``async with`` to its end. ``directory`` None: nothing is kept on disk.

    An index is known by the digest of all that it was made of, so the wrong one is never found; files in the directory
    that were used least recently go where they take more than ``most_bytes``.
    """

    def __init__(
        self, directory: Path | None, *, embedder: str = WORDS, processes: int = 2, most_bytes: int = 2 * GIB
    ) -> None:
        self._directory = directory
        self._chosen = embedder
        self._most_bytes = most_bytes
        self._processes = processes
        # One at a time: they hold the interpreter for most of what they take.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="code-search")
        self._embedder: Embedder | None = None
        self._at_hand: OrderedDict[str, Index] = OrderedDict()
        self._near: OrderedDict[str, list[str]] = OrderedDict()
        self._making: dict[str, _IndexBuild] = {}

    async def __aenter__(self) -> Self:
        """Raises RuntimeUnavailable where there is no such embedder."""
        self._embedder = await asyncio.to_thread(load_embedder, self._chosen)
        self._workers = Workers(self._chosen if self._embedder else NONE, self._processes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        under_way = [making.task for making in self._making.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._workers.__aexit__(kind, error, trace)
        await asyncio.to_thread(self._thread.shutdown)

    def view(self, sandbox: Sandbox, root: str) -> SandboxIndex:
        """Of the tree below ``root``; to be kept as long as the sandbox is searched."""
        return SandboxIndex(self, sandbox, root)

    async def index(self, files: Sequence[SourceFile]) -> Index:
        """The index of exactly these files; a caller that goes leaves its making to others. Raises IndexingFailed."""
        return await asyncio.shield(self.making(files, CpuBudget()))

    def making(self, files: Sequence[SourceFile], allowance: CpuBudget) -> "asyncio.Future[Index]":
        """The index of exactly these files, made where there is none yet; to be shielded, for others may wait for it.

        Where ``allowance`` is used up, one of the asker's own is made, unparsed and without meaning. The future raises
        IndexingFailed.
        """
        digest = self._digest(files)
        if digest in self._at_hand:
            self._at_hand.move_to_end(digest)
            there: asyncio.Future[Index] = asyncio.get_running_loop().create_future()
            there.set_result(self._at_hand[digest])
            return there
        rough = allowance.is_used_up and digest not in self._making
        known = f"{digest} of {id(allowance)}" if rough else digest
        if known not in self._making:
            askers: list[CpuBudget] = []
            task = asyncio.create_task(self._roughly(files, askers) if rough else self._make(digest, files, askers))
            self._making[known] = _IndexBuild(task, askers)
            task.add_done_callback(lambda task: self._made(known, task))
        self._making[known].askers.append(allowance)
        return self._making[known].task

    def _made(self, digest: str, task: asyncio.Task[Index]) -> None:
        del self._making[digest]
        if not task.cancelled():
            task.exception()  # seen, also where all who asked have gone

    async def segments(self, files: Sequence[SourceFile], allowance: CpuBudget) -> list[IndexSegment]:
        """Of a few files that differ from those of an index. Raises IndexingFailed."""
        return unpack((await self._build(files, [allowance], rough=allowance.is_used_up)).data)

    def near(self, kind: str) -> list[Index]:
        """Indexes at hand of trees that were said to be of this kind, the latest first."""
        return [self._at_hand[digest] for digest in self._near.get(kind, ()) if digest in self._at_hand]

    def note(self, kind: str, index: Index) -> None:
        """The index is of a tree of this kind: others like it may differ from it in some files only."""
        if not index.digest:
            return
        others = [digest for digest in self._near.pop(kind, ()) if digest != index.digest]
        self._near[kind] = [index.digest, *others[: _NEAR - 1]]
        while len(self._near) > _AT_HAND:
            self._near.popitem(last=False)

    async def search(self, question: str, parts: Sequence[Part], *, within: str, limit: int) -> list[Hit]:
        """The best chunks of the parts, best first, of files in the directory ``within`` or of that file."""

        def find() -> list[Hit]:
            return search(Question.of(question, self._embedder), parts, limit, within)

        return await asyncio.get_running_loop().run_in_executor(self._thread, find)

    def _digest(self, files: Sequence[SourceFile]) -> str:
        embedder = self._embedder.name if self._embedder else NONE
        digest = hashlib.sha256(f"{FORM} {embedder}\n".encode())
        for file in sorted(files, key=lambda file: file.path):
            path = file.path.encode("utf-8", "surrogateescape")
            digest.update(len(path).to_bytes(4, "little") + path + file.digest)
        return digest.hexdigest()

    async def _roughly(self, files: Sequence[SourceFile], askers: Sequence[CpuBudget]) -> Index:
        """Known by no digest, so that nobody else gets it."""
        return Index("", unpack((await self._build(files, askers, rough=True)).data))

    async def _build(self, files: Sequence[SourceFile], askers: Sequence[CpuBudget], *, rough: bool = False) -> Built:
        """Packed segments, made side by side. Raises IndexingFailed."""
        try:
            async with asyncio.TaskGroup() as group:
                building = [
                    group.create_task(self._workers.build(portion, askers, rough=rough))
                    for portion in _portions(files, self._workers.most)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        built = [task.result() for task in building]
        return Built(b"".join(part.data for part in built), poor=any(part.poor for part in built))

    async def _make(self, digest: str, files: Sequence[SourceFile], askers: Sequence[CpuBudget]) -> Index:
        index = await asyncio.to_thread(self._read, digest)
        if index is None:
            built = await self._build(files, askers)
            if built.poor:  # as that of who has used up its allowance: for those who wait, and nobody later
                return Index("", await asyncio.to_thread(unpack, built.data))
            index = await asyncio.to_thread(self._keep, digest, built.data)
        self._at_hand[digest] = index
        while len(self._at_hand) > _AT_HAND:
            self._at_hand.popitem(last=False)
        return index

    def _read(self, digest: str) -> Index | None:
        if self._directory is None:
            return None
        path = self._directory / (digest + _SUFFIX)
        try:
            with path.open("rb") as file:
                os.utime(file.fileno())
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            return Index(digest, unpack(memoryview(mapped)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, BadIndex) as error:
            log.warning("the index %s is made anew: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _keep(self, digest: str, data: bytes) -> Index:
        """On disk if that can be, for it need not."""
        if self._directory is not None:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                    file.write(data)
                os.replace(file.name, self._directory / (digest + _SUFFIX))
                self._make_room()
            except OSError as error:
                log.warning("an index is not kept on disk: %s", error)
        return self._read(digest) or Index(digest, unpack(data))

    def _make_room(self) -> None:
        assert self._directory is not None
        kept = sorted(
            ((stat.st_mtime_ns, stat.st_size, path) for path in self._directory.iterdir() if (stat := path.stat())),
            reverse=True,
        )
        room = self._most_bytes
        for number, (_, size, path) in enumerate(kept):
            room -= size
            if room < 0 and number > 0:
                path.unlink(missing_ok=True)


def _portions(files: Sequence[SourceFile], most: int) -> list[list[SourceFile]]:
    """The files of one request each, of about as much work; as many as keep all processes busy, or as are worth it."""
    total = sum(map(_weight, files))
    rounds = math.ceil(total / PORTION_BYTES / most)
    wanted = total / max(1, min(most * rounds, total // _WORTH_A_PROCESS))
    portions: list[list[SourceFile]] = [[]]
    filled = 0
    for file in files:
        if filled >= wanted:
            portions.append([])
            filled = 0
        portions[-1].append(file)
        filled += _weight(file)
    return portions


def _weight(file: SourceFile) -> int:
    """In bytes; the smallest file is some work too."""
    return len(file.content) + _LEAST_WEIGHT

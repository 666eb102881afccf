"""Store search indexes of source trees: built once, cached in a directory, shared by all sandboxes with
the same files.
"""

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
from sandboxes.search.embeddings.load import NONE, WORDS, load_embedder
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
"""Version of the index content. Increase it whenever the same files would give a different index."""

_MIN_PORTION, _MIN_WEIGHT = 256 * 1024, 512
_MAX_CACHED = 64
_MAX_NOTED = 4
_SUFFIX = ".index"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _IndexBuild:
    """A build in progress. ``budgets`` are the CPU budgets of the sandboxes that wait for it; more may join."""

    task: asyncio.Task[Index]
    budgets: list[CpuBudget]


class IndexStore:
    """Builds and caches indexes. Use it as an async context manager, from one event loop.

    ``directory`` None: indexes are kept only in memory. An index is addressed by the digest of all its inputs. If the
    files in the directory exceed ``most_bytes``, the least recently used ones are removed.
    """

    def __init__(
        self, directory: Path | None, *, embedder: str = WORDS, processes: int = 2, most_bytes: int = 2 * GIB
    ) -> None:
        self._directory = directory
        self._embedder_name = embedder
        self._most_bytes = most_bytes
        self._processes = processes
        # One thread: searches hold the GIL most of the time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="code-search")
        self._embedder: Embedder | None = None
        self._cached: OrderedDict[str, Index] = OrderedDict()
        self._noted: OrderedDict[str, list[str]] = OrderedDict()
        self._builds: dict[str, _IndexBuild] = {}

    async def __aenter__(self) -> Self:
        """Load the embedder. Raises RuntimeUnavailable if the configured embedder does not exist."""
        self._embedder = await asyncio.to_thread(load_embedder, self._embedder_name)
        self._workers = Workers(self._embedder_name if self._embedder else NONE, self._processes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [build.task for build in self._builds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._workers.__aexit__(kind, error, trace)
        await asyncio.to_thread(self._thread.shutdown)

    def view(self, sandbox: Sandbox, root: str) -> SandboxIndex:
        """Return the searchable view of the tree below ``root``. Keep it as long as the sandbox is searched."""
        return SandboxIndex(self, sandbox, root)

    async def index(self, files: Sequence[SourceFile]) -> Index:
        """Return the index of exactly these files. If the caller is cancelled, the build continues. Raises
        IndexingFailed.
        """
        return await asyncio.shield(self.build_shared(files, CpuBudget()))

    def build_shared(self, files: Sequence[SourceFile], budget: CpuBudget) -> "asyncio.Future[Index]":
        """Return a future of the index of exactly these files, and start a build if there is none.

        Other callers may wait for the same future, so shield it from cancellation. If ``budget`` is used up, the
        index is built for this caller alone, without parsing and embeddings. The future raises IndexingFailed.
        """
        digest = self._digest(files)
        if digest in self._cached:
            self._cached.move_to_end(digest)
            loaded: asyncio.Future[Index] = asyncio.get_running_loop().create_future()
            loaded.set_result(self._cached[digest])
            return loaded
        rough = budget.is_used_up and digest not in self._builds
        key = f"{digest} of {id(budget)}" if rough else digest
        if key not in self._builds:
            budgets: list[CpuBudget] = []
            task = asyncio.create_task(
                self._build_private(files, budgets) if rough else self._load_or_build(digest, files, budgets)
            )
            self._builds[key] = _IndexBuild(task, budgets)
            task.add_done_callback(lambda task: self._on_done(key, task))
        self._builds[key].budgets.append(budget)
        return self._builds[key].task

    def _on_done(self, digest: str, task: asyncio.Task[Index]) -> None:
        del self._builds[digest]
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved even if all callers are gone

    async def segments(self, files: Sequence[SourceFile], budget: CpuBudget) -> list[IndexSegment]:
        """Build segments of a few files that differ from those of an index. Raises IndexingFailed."""
        return unpack((await self._build(files, [budget], rough=budget.is_used_up)).data)

    def noted_indexes(self, kind: str) -> list[Index]:
        """Return indexes in memory that were noted for trees of this kind, the latest first."""
        return [self._cached[digest] for digest in self._noted.get(kind, ()) if digest in self._cached]

    def note(self, kind: str, index: Index) -> None:
        """Remember the index for trees of this kind, which may differ from it in only some files."""
        if not index.digest:
            return
        others = [digest for digest in self._noted.pop(kind, ()) if digest != index.digest]
        self._noted[kind] = [index.digest, *others[: _MAX_NOTED - 1]]
        while len(self._noted) > _MAX_CACHED:
            self._noted.popitem(last=False)

    async def search(self, question: str, parts: Sequence[Part], *, within: str, limit: int) -> list[Hit]:
        """Return the best chunks of the parts, best first, from files in the directory ``within`` or from that file."""

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

    async def _build_private(self, files: Sequence[SourceFile], budgets: Sequence[CpuBudget]) -> Index:
        """Build an index without a digest, so that it is never shared."""
        return Index("", unpack((await self._build(files, budgets, rough=True)).data))

    async def _build(self, files: Sequence[SourceFile], budgets: Sequence[CpuBudget], *, rough: bool = False) -> Built:
        """Build packed segments in parallel. Raises IndexingFailed."""
        try:
            async with asyncio.TaskGroup() as group:
                building = [
                    group.create_task(self._workers.build(portion, budgets, rough=rough))
                    for portion in _portions(files, self._workers.most)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        built = [task.result() for task in building]
        return Built(b"".join(part.data for part in built), poor=any(part.poor for part in built))

    async def _load_or_build(self, digest: str, files: Sequence[SourceFile], budgets: Sequence[CpuBudget]) -> Index:
        index = await asyncio.to_thread(self._load, digest)
        if index is None:
            built = await self._build(files, budgets)
            if built.poor:  # not cached: a later build may succeed
                return Index("", await asyncio.to_thread(unpack, built.data))
            index = await asyncio.to_thread(self._save, digest, built.data)
        self._cached[digest] = index
        while len(self._cached) > _MAX_CACHED:
            self._cached.popitem(last=False)
        return index

    def _load(self, digest: str) -> Index | None:
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
            log.warning("search index %s cannot be read and is built again: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _save(self, digest: str, data: bytes) -> Index:
        """Write the index to disk, if possible, and return it. A failed write is only logged."""
        if self._directory is not None:
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile(dir=self._directory, delete=False) as file:
                    file.write(data)
                os.replace(file.name, self._directory / (digest + _SUFFIX))
                self._make_room()
            except OSError as error:
                log.warning("a search index is not cached on disk: %s", error)
        return self._load(digest) or Index(digest, unpack(data))

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
    """Split the files into requests of about equal work: as many as keep all processes busy, unless they
    would be tiny.
    """
    total = sum(map(_weight, files))
    rounds = math.ceil(total / PORTION_BYTES / most)
    wanted = total / max(1, min(most * rounds, total // _MIN_PORTION))
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
    """Return the work for a file in bytes. The smallest file has a minimum cost."""
    return len(file.content) + _MIN_WEIGHT

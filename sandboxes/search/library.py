"""Indexes of trees: each made once, kept in a directory, shared by all sandboxes that hold the same files."""

import asyncio
import contextlib
import hashlib
import logging
import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from sandboxes.sandbox import Sandbox
from sandboxes.search.embedders import NONE, WORDS, load_embedder
from sandboxes.search.embedding import Embedder
from sandboxes.search.errors import BadIndex
from sandboxes.search.index import Index
from sandboxes.search.packing import unpack
from sandboxes.search.ranking import Hit, Part, Question, search
from sandboxes.search.segment import Segment, SourceFile
from sandboxes.search.view import View
from sandboxes.search.workers import Workers

GIB = 1024**3
FORM = 1
"""Of what an index holds; to be raised whenever another one would come of the same files."""

_AT_HAND = 64
_NEAR = 4
_SUFFIX = ".index"

log = logging.getLogger(__name__)


class Library:
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
        self._making: dict[str, asyncio.Task[Index]] = {}

    async def __aenter__(self) -> Self:
        """Raises RuntimeUnavailable where there is no such embedder."""
        self._embedder = await asyncio.to_thread(load_embedder, self._chosen)
        self._workers = Workers(self._chosen if self._embedder else NONE, self._processes)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._making.values():
            task.cancel()
        await asyncio.gather(*self._making.values(), return_exceptions=True)
        await self._workers.__aexit__(kind, error, trace)
        await asyncio.to_thread(self._thread.shutdown)

    def view(self, sandbox: Sandbox, root: str) -> View:
        """Of the tree below ``root``; to be kept as long as the sandbox is searched."""
        return View(self, sandbox, root)

    async def index(self, files: Sequence[SourceFile]) -> Index:
        """The index of exactly these files, made where there is none yet; a caller that goes leaves it to the others.

        Raises IndexingFailed.
        """
        digest = self._digest(files)
        if digest in self._at_hand:
            self._at_hand.move_to_end(digest)
            return self._at_hand[digest]
        if digest not in self._making:
            self._making[digest] = asyncio.create_task(self._make(digest, files))
            self._making[digest].add_done_callback(lambda task: self._made(digest, task))
        return await asyncio.shield(self._making[digest])

    def _made(self, digest: str, task: asyncio.Task[Index]) -> None:
        del self._making[digest]
        if not task.cancelled():
            task.exception()  # seen, also where all who asked have gone

    async def segment(self, files: Sequence[SourceFile]) -> Segment:
        """Of a few files that differ from those of an index. Raises IndexingFailed."""
        return unpack(await self._workers.build(files))[0]

    def near(self, kind: str) -> list[Index]:
        """Indexes at hand of trees that were said to be of this kind, the latest first."""
        return [self._at_hand[digest] for digest in self._near.get(kind, ()) if digest in self._at_hand]

    def note(self, kind: str, index: Index) -> None:
        """The index is of a tree of this kind: others like it may differ from it in some files only."""
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

    async def _make(self, digest: str, files: Sequence[SourceFile]) -> Index:
        index = await asyncio.to_thread(self._read, digest)
        if index is None:
            shares = _shares(files, self._workers.most)
            try:
                async with asyncio.TaskGroup() as group:
                    making = [group.create_task(self._workers.build(share)) for share in shares]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            data = b"".join(task.result() for task in making)
            index = await asyncio.to_thread(self._keep, digest, data)
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


def _shares(files: Sequence[SourceFile], most: int) -> list[list[SourceFile]]:
    """The files for each process, of about as many bytes; fewer where there is little to do."""
    total = sum(len(file.content) for file in files)
    wanted = total / max(1, min(most, total // (256 * 1024)))
    shares: list[list[SourceFile]] = [[]]
    filled = 0
    for file in files:
        if filled >= wanted:
            shares.append([])
            filled = 0
        shares[-1].append(file)
        filled += len(file.content)
    return shares

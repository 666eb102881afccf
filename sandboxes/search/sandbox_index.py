"""The searchable view of one sandbox: a shared index plus segments for the files that differ in this sandbox."""

import asyncio
import hashlib
import posixpath
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sandboxes.errors import PathError
from sandboxes.interface import FileEntry, Sandbox
from sandboxes.search.index.index import Index
from sandboxes.search.index.segment import IndexSegment, SourceFile
from sandboxes.search.index.source_tree import LARGEST_FILE, Tree, is_text, read_tree
from sandboxes.search.ranking import Part
from sandboxes.search.workers.fair_queue import CpuBudget

if TYPE_CHECKING:
    from sandboxes.search.index_store import IndexStore

SETTLED_NS = 100_000_000
"""A file modified less than this before it was read may be written again with the same mtime, so it is read again."""

_IN_FLIGHT = 16
_MAX_DIFFERING, _MAX_DIFFERING_SHARE = 64, 0.25
"""If more files than this number and than this share of all files differ, a complete new index is built."""

_MAX_EXTRA_SEGMENTS = 16
"""Maximum segments in addition to the index; each one slows down queries."""


@dataclass(frozen=True, slots=True)
class IndexedTree:
    """A snapshot of the searchable files: the parts to search, their paths, and the number of files left out."""

    parts: Sequence[Part]
    paths: Collection[str]
    left_out: int

    def holds(self, place: str) -> bool:
        """Return whether ``place`` is an indexed file or a directory with indexed files."""
        return place in self.paths or any(path.startswith(place + "/") for path in self.paths)


@dataclass(frozen=True, slots=True)
class _FileState:
    """The state of a file when it was read. ``digest`` None: not text, or not readable."""

    size: int
    mtime_ns: int
    digest: bytes | None
    settled: bool

    def is_still(self, entry: FileEntry) -> bool:
        return self.settled and (self.size, self.mtime_ns) == (entry.size, entry.mtime_ns)


class SandboxIndex:
    """The index of the tree below ``root``. ``refresh`` reads only files whose size or mtime changed.

    A policy that forges mtimes affects only its own searches, because an index is addressed by the content that was
    read.
    """

    def __init__(self, index_store: "IndexStore", sandbox: Sandbox, root: str) -> None:
        self._index_store = index_store
        self._sandbox = sandbox
        self._root = root
        self._kind = f"{sandbox.image_digest} {root}"
        self._refresh_lock = asyncio.Lock()
        self._budget = CpuBudget()
        self._build: asyncio.Future[Index] | None = None
        self._states: dict[str, _FileState] = {}
        self._index: Index | None = None
        self._extra_segments: list[IndexSegment] = []
        self._snapshot: IndexedTree | None = None

    async def refresh(self) -> IndexedTree:
        """Index the current tree and return it. Cancellation of one call leaves the next call correct.

        Raises PathError, IndexingFailed and SandboxGone.
        """
        async with self._refresh_lock:
            if self._build is not None:  # started by a cancelled call; a sandbox has one build at a time
                await asyncio.wait({self._build})
            tree = await read_tree(self._sandbox, self._root)
            changed, gone = await asyncio.to_thread(self._differing, tree)
            if changed or gone or self._snapshot is None:
                self._snapshot = None
                for path in gone:
                    del self._states[path]
                await self._cover_all(tree, await self._read(changed))
                found = await asyncio.to_thread(cover, self._texts(), self._segments())
                self._snapshot = IndexedTree(found.parts, self._texts().keys(), tree.left_out)
            return self._snapshot

    def _differing(self, tree: Tree) -> tuple[list[FileEntry], set[str]]:
        """Return the files that may have changed since they were read, and the paths of removed files."""
        changed = [entry for path, entry in tree.files.items() if not self._is_unchanged(path, entry)]
        return changed, self._states.keys() - tree.files.keys()

    def _is_unchanged(self, path: str, entry: FileEntry) -> bool:
        state = self._states.get(path)
        return state is not None and state.is_still(entry)

    def _texts(self) -> dict[str, bytes]:
        """Return path → digest of all text files."""
        return {path: state.digest for path, state in self._states.items() if state.digest is not None}

    def _segments(self) -> list[IndexSegment]:
        return [*(self._index.segments if self._index else ()), *self._extra_segments]

    async def _cover_all(self, tree: Tree, read: dict[str, SourceFile]) -> None:
        """Ensure that every text file is in the index or in an additional segment. ``read`` holds files already in
        memory.
        """
        texts = self._texts()
        if self._index is None:
            candidates = self._index_store.noted_indexes(self._kind)
            self._index = await asyncio.to_thread(_nearest, texts, candidates)
        missing = (await asyncio.to_thread(cover, texts, self._segments())).missing
        if self._index is None or len(missing) > max(_MAX_DIFFERING, _MAX_DIFFERING_SHARE * len(texts)):
            self._index, self._extra_segments = None, []
            self._build = self._index_store.build_shared(await self._load(tree, texts, read), self._budget)
            self._index = await asyncio.shield(self._build)
            self._index_store.note(self._kind, self._index)
        elif missing:
            if len(self._extra_segments) >= _MAX_EXTRA_SEGMENTS:
                self._extra_segments = []
                missing = cover(texts, self._segments()).missing
            self._extra_segments += await self._index_store.segments(
                await self._load(tree, missing, read), self._budget
            )
            self._extra_segments = [
                segment for segment in self._extra_segments if cover(self._texts(), [segment]).parts[0].live.any()
            ]

    async def _load(self, tree: Tree, paths: Iterable[str], read: dict[str, SourceFile]) -> list[SourceFile]:
        """Return the text files at these paths; read those that are not in ``read``."""
        wanted = sorted(paths)
        read |= await self._read([tree.files[path] for path in wanted if path not in read])
        return [read[path] for path in wanted if path in read]

    async def _read(self, entries: Sequence[FileEntry]) -> dict[str, SourceFile]:
        """Read files, remember the state of each, and return those that are text."""
        found: dict[str, SourceFile] = {}
        todo = iter(entries)

        async def some() -> None:
            for entry in todo:
                await self._read_one(entry, found)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_IN_FLIGHT, len(entries))):
                    group.create_task(some())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return found

    async def _read_one(self, entry: FileEntry, found: dict[str, SourceFile]) -> None:
        settled = entry.mtime_ns < time.time_ns() - SETTLED_NS
        digest = None
        try:
            content = await self._sandbox.read_file(posixpath.join(self._root, entry.path), limit=LARGEST_FILE + 1)
        except PathError:  # removed in the meantime, or not readable
            content = b""
        if content and len(content) <= LARGEST_FILE and is_text(content):
            digest = hashlib.sha256(content).digest()
            found[entry.path] = SourceFile(entry.path, digest, content)
        self._states[entry.path] = _FileState(entry.size, entry.mtime_ns, digest, settled)


def _nearest(texts: Mapping[str, bytes], candidates: Sequence[Index]) -> Index | None:
    """Return the index that lacks the fewest text files."""
    return min(candidates, key=lambda index: len(cover(texts, index.segments).missing), default=None)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Parts that cover text files, and the paths that no segment covers."""

    parts: Sequence[Part]
    missing: frozenset[str]


def cover(texts: Mapping[str, bytes], segments: Sequence[IndexSegment]) -> Coverage:
    """Select the chunks of ``texts`` (path → digest) in the segments; each file is taken from the first segment that
    has it.
    """
    missing = set(texts)
    parts = []
    for segment in segments:
        live = np.zeros(len(segment.paths), np.bool_)
        for number, (path, digest) in enumerate(zip(segment.paths, segment.digests, strict=True)):
            if path in missing and texts[path] == digest:
                missing.discard(path)
                live[number] = True
        parts.append(Part(segment, live[segment.files]))
    return Coverage(parts, frozenset(missing))

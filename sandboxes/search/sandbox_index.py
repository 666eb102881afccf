"""What a search of one sandbox sees: an index that is shared, and what differs from it here."""

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
from sandboxes.search.index.source_tree import LARGEST_FILE, Tree, is_text, look_at
from sandboxes.search.ranking import Part
from sandboxes.search.workers.fair_queue import CpuBudget

if TYPE_CHECKING:
    from sandboxes.search.index_store import IndexStore

SETTLED_NS = 100_000_000
"""A file that was written so shortly before it was read may be written again and show the same time."""

_IN_FLIGHT = 16
_MANY, _SHARE = 64, 0.25
"""Where more files differ, and more of all there are, they get an index of their own."""

_MOST_LATER = 16
"""Segments beside the index; each costs a query some time."""


@dataclass(frozen=True, slots=True)
class IndexedTree:
    """What is to be searched: parts of segments, of which files, and how many more there are than are searched."""

    parts: Sequence[Part]
    paths: Collection[str]
    left_out: int

    def holds(self, place: str) -> bool:
        """Whether this is one of the files, or a directory that holds some."""
        return place in self.paths or any(path.startswith(place + "/") for path in self.paths)


@dataclass(frozen=True, slots=True)
class _Known:
    """A file as it was when it was read. ``digest`` None: it is no text, or could not be read."""

    size: int
    mtime_ns: int
    digest: bytes | None
    settled: bool

    def is_still(self, entry: FileEntry) -> bool:
        return self.settled and (self.size, self.mtime_ns) == (entry.size, entry.mtime_ns)


class SandboxIndex:
    """Of the tree below ``root``. Each look reads what has changed since the last by its size and time, and no more;
    who forges these deceives nobody but himself, since an index is known by what was read."""

    def __init__(self, library: "IndexStore", sandbox: Sandbox, root: str) -> None:
        self._library = library
        self._sandbox = sandbox
        self._root = root
        self._kind = f"{sandbox.image_digest} {root}"
        self._looking = asyncio.Lock()
        self._allowance = CpuBudget()
        self._making: asyncio.Future[Index] | None = None
        self._known: dict[str, _Known] = {}
        self._index: Index | None = None
        self._later: list[IndexSegment] = []
        self._seen: IndexedTree | None = None

    async def refresh(self) -> IndexedTree:
        """The tree as it is now. Raises PathError, IndexingFailed and SandboxGone; a look that was cut short does no
        harm to the next."""
        async with self._looking:
            if self._making is not None:  # for a look that was cut short: one sandbox has one at a time
                await asyncio.wait({self._making})
            tree = await look_at(self._sandbox, self._root)
            changed, gone = await asyncio.to_thread(self._differing, tree)
            if changed or gone or self._seen is None:
                self._seen = None
                for path in gone:
                    del self._known[path]
                await self._cover(tree, await self._read(changed))
                found = await asyncio.to_thread(served, self._texts(), self._segments())
                self._seen = IndexedTree(found.parts, self._texts().keys(), tree.left_out)
            return self._seen

    def _differing(self, tree: Tree) -> tuple[list[FileEntry], set[str]]:
        """The files that may not be as they were when they were read, and the paths of those that are gone."""
        changed = [entry for path, entry in tree.files.items() if not self._is_known(path, entry)]
        return changed, self._known.keys() - tree.files.keys()

    def _is_known(self, path: str, entry: FileEntry) -> bool:
        known = self._known.get(path)
        return known is not None and known.is_still(entry)

    def _texts(self) -> dict[str, bytes]:
        """Path → digest."""
        return {path: known.digest for path, known in self._known.items() if known.digest is not None}

    def _segments(self) -> list[IndexSegment]:
        return [*(self._index.segments if self._index else ()), *self._later]

    async def _cover(self, tree: Tree, read: dict[str, SourceFile]) -> None:
        """See that every text is in the index or in a segment beside it. ``read``: those whose content is at hand."""
        texts = self._texts()
        if self._index is None:
            likely = self._library.near(self._kind)
            self._index = await asyncio.to_thread(_nearest, texts, likely)
        missing = (await asyncio.to_thread(served, texts, self._segments())).missing
        if self._index is None or len(missing) > max(_MANY, _SHARE * len(texts)):
            self._index, self._later = None, []
            self._making = self._library.making(await self._all_of(tree, texts, read), self._allowance)
            self._index = await asyncio.shield(self._making)
            self._library.note(self._kind, self._index)
        elif missing:
            if len(self._later) >= _MOST_LATER:
                self._later = []
                missing = served(texts, self._segments()).missing
            self._later += await self._library.segments(await self._all_of(tree, missing, read), self._allowance)
            self._later = [segment for segment in self._later if served(self._texts(), [segment]).parts[0].live.any()]

    async def _all_of(self, tree: Tree, paths: Iterable[str], read: dict[str, SourceFile]) -> list[SourceFile]:
        """The texts at these paths, read again where they are not at hand."""
        wanted = sorted(paths)
        read |= await self._read([tree.files[path] for path in wanted if path not in read])
        return [read[path] for path in wanted if path in read]

    async def _read(self, entries: Sequence[FileEntry]) -> dict[str, SourceFile]:
        """Those that are text. What each was is known from now on."""
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
        except PathError:  # it went meanwhile, or is not to be read
            content = b""
        if content and len(content) <= LARGEST_FILE and is_text(content):
            digest = hashlib.sha256(content).digest()
            found[entry.path] = SourceFile(entry.path, digest, content)
        self._known[entry.path] = _Known(entry.size, entry.mtime_ns, digest, settled)


def _nearest(texts: Mapping[str, bytes], likely: Sequence[Index]) -> Index | None:
    """The index that lacks the fewest texts."""
    return min(likely, key=lambda index: len(served(texts, index.segments).missing), default=None)


@dataclass(frozen=True, slots=True)
class Served:
    parts: Sequence[Part]
    missing: frozenset[str]


def served(texts: Mapping[str, bytes], segments: Sequence[IndexSegment]) -> Served:
    """Which chunks of the segments are those of ``texts`` (path → digest), each file taken from the first that has it,
    and which files none has."""
    missing = set(texts)
    parts = []
    for segment in segments:
        live = np.zeros(len(segment.paths), np.bool_)
        for number, (path, digest) in enumerate(zip(segment.paths, segment.digests, strict=True)):
            if path in missing and texts[path] == digest:
                missing.discard(path)
                live[number] = True
        parts.append(Part(segment, live[segment.files]))
    return Served(parts, frozenset(missing))

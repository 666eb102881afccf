"""A segment: the index of some files, as arrays that can be memory-mapped."""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from sandboxes.search.embeddings.word_table import Embedder, Floats, Passage
from sandboxes.search.index.chunks import cut
from sandboxes.search.index.languages import is_source, is_test, outlines_of
from sandboxes.search.terms import terms, words

NAME_WEIGHT, PATH_WEIGHT = 8, 2
"""Occurrences in the text that a word of a definition's name, or of its file's path, counts as."""

MOST_CHUNKS, MOST_IN_ALL = 2000, 12_000
"""Maximum chunks of one file and of a segment; later chunks are not indexed. Two MiB of real code have about 4,000.

The limits bound the cost of a generated file with a million definitions.
"""

PROSE, TEST = 0.5, 0.8
"""Weights of a chunk of a non-source file and of a test, relative to 1 for other code.

Prose resembles any question more than code does, and tests use all the words of the code that they test.
"""

MOST_TERMS = 1_000_000
"""Maximum terms of a segment. Later new words are not indexed as terms; they only affect the embedding."""

VECTOR_LENGTH = 127.0
_BATCH = 512


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A source file. ``digest`` is the digest of its content."""

    path: str
    digest: bytes
    content: bytes

    @property
    def text(self) -> str:
        """The text with lines as every tool counts them: ended by LF only."""
        return self.content.decode("utf-8", "replace").replace("\r", " ")


@dataclass(frozen=True, slots=True)
class IndexSegment:
    """The index of some files, with one row for each chunk.

    ``postings[at[i]:at[i + 1]]`` are the chunks that contain the term with hash ``hashes[i]``, in order, and ``counts``
    are its frequencies in them. ``priors`` weights a chunk by the kind of its file. ``vectors`` have length 127, or 0
    for a chunk without meaning; without an embedder they have no columns.
    """

    paths: Sequence[str]
    digests: Sequence[bytes]
    names: Sequence[str]
    files: NDArray[np.int32]
    firsts: NDArray[np.int32]
    lasts: NDArray[np.int32]
    lengths: NDArray[np.float32]
    priors: NDArray[np.float32]
    hashes: NDArray[np.uint64]
    at: NDArray[np.int64]
    postings: NDArray[np.int32]
    counts: NDArray[np.uint16]
    vectors: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.files)

    def posted(self, term: int) -> tuple[NDArray[np.int32], NDArray[np.uint16]]:
        """Return the chunks that contain the term with this hash, and its count in each."""
        found = int(np.searchsorted(self.hashes, np.uint64(term)))
        if found == len(self.hashes) or int(self.hashes[found]) != term:
            return self.postings[:0], self.counts[:0]
        rows = slice(int(self.at[found]), int(self.at[found + 1]))
        return self.postings[rows], self.counts[rows]


def hash_of(term: str) -> int:
    digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def build(
    files: Iterable[SourceFile], embedder: Embedder | None, *, unparsed: Container[int] = frozenset()
) -> IndexSegment:
    """Index files. ``unparsed`` holds the indices of the files to split into windows without parsing."""
    builder = _Builder(embedder)
    for number, file in enumerate(files):
        builder.add(file, parsed=number not in unparsed)
    return builder.finish()


def _prior(path: str) -> float:
    if not is_source(path):
        return PROSE
    return TEST if is_test(path) else 1.0


class _Builder:
    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._paths: list[str] = []
        self._digests: list[bytes] = []
        self._names: list[str] = []
        self._places: list[tuple[int, int, int]] = []
        self._lengths: list[int] = []
        self._priors: list[float] = []
        self._numbers: dict[str, int] = {}
        self._of_word: dict[str, list[int]] = {}
        self._terms: list[int] = []
        self._counts: list[int] = []
        self._held: list[int] = []
        self._passages: list[Passage] = []
        self._vectors: list[Floats] = []

    def add(self, file: SourceFile, *, parsed: bool) -> None:
        whole = file.text
        lines = whole.split("\n")
        of_path = words(file.path)
        prior = _prior(file.path)
        outlines = outlines_of(file.path) if parsed else ()
        for chunk in islice(cut(whole, lines, outlines), min(MOST_CHUNKS, MOST_IN_ALL - len(self._places))):
            text = "\n".join(lines[chunk.first - 1 : chunk.last])
            found = Counter(words(text))
            self._lengths.append(found.total())
            for word in words(chunk.name):
                found[word] += NAME_WEIGHT
            for word in of_path:
                found[word] += PATH_WEIGHT
            self._post(found)
            self._places.append((len(self._paths), chunk.first, chunk.last))
            self._names.append(chunk.name)
            self._priors.append(prior)
            self._passages.append(Passage(text, found))
            if len(self._passages) == _BATCH:
                self._embed()
        self._paths.append(file.path)
        self._digests.append(file.digest)

    def _post(self, found: Counter[str]) -> None:
        counted: dict[int, int] = {}
        of_word = self._of_word
        for word, count in found.items():
            for number in of_word.get(word) or self._numbered(word):
                counted[number] = counted.get(number, 0) + count
        self._terms += counted
        self._counts += counted.values()
        self._held.append(len(counted))

    def _numbered(self, word: str) -> list[int]:
        numbers = self._numbers
        if len(numbers) > MOST_TERMS:
            return [numbers[term] for term in terms(word) if term in numbers]
        found = self._of_word[word] = [numbers.setdefault(term, len(numbers)) for term in terms(word)]
        return found

    def _embed(self) -> None:
        if self._embedder is not None:
            self._vectors.append(self._embedder.embed(self._passages))
        self._passages.clear()

    def finish(self) -> IndexSegment:
        self._embed()
        files, firsts, lasts = np.array(self._places, np.int32).reshape(-1, 3).T
        hashes = np.fromiter(map(hash_of, self._numbers), np.uint64, len(self._numbers))
        order = np.argsort(hashes)
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order), dtype=np.int32)
        ranks = rank[np.array(self._terms, np.int32)]
        by_term = np.argsort(ranks, kind="stable")
        holders = np.repeat(np.arange(len(self._held), dtype=np.int32), self._held)
        counts = np.minimum(np.array(self._counts, np.int64), np.iinfo(np.uint16).max).astype(np.uint16)
        vectors = np.concatenate(self._vectors) if self._vectors else np.zeros((len(files), 0), np.float32)
        return IndexSegment(
            paths=self._paths,
            digests=self._digests,
            names=self._names,
            files=np.ascontiguousarray(files),
            firsts=np.ascontiguousarray(firsts),
            lasts=np.ascontiguousarray(lasts),
            lengths=np.array(self._lengths, np.float32),
            priors=np.array(self._priors, np.float32),
            hashes=hashes[order],
            at=np.concatenate([[0], np.cumsum(np.bincount(ranks, minlength=len(order)))]).astype(np.int64),
            postings=holders[by_term],
            counts=counts[by_term],
            vectors=np.rint(vectors * VECTOR_LENGTH).astype(np.int8),
        )

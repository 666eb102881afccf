"""The interface of an embedder, and the farm's own embedder by a table of word vectors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sandboxes.search.embeddings.minilm import UNKNOWN, pieces
from sandboxes.search.terms import parts

Floats = NDArray[np.float32]

_REMEMBERED = 1 << 16
"""Maximum words whose vectors are cached, at a kilobyte each; a hostile text has millions of words."""

_BLOCK = 1 << 14
"""Words that are summed in one step, so that their vectors stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A question or a chunk. ``words`` maps each word, as written, to its weight."""

    text: str
    words: Mapping[str, float]


class Embedder(Protocol):
    """Maps passages to vectors; similar meanings have a large cosine."""

    @property
    def name(self) -> str:
        """The embedder and its version; an index is only searched with the embedder that it was built with."""
        ...

    def embed(self, passages: Sequence[Passage]) -> Floats:
        """Return one row for each passage: of length 1, or 0 for a passage without meaning."""
        ...


@dataclass(frozen=True, slots=True)
class WordTable:
    """A vector for each word piece: a row of bytes times its scale. The rows may be memory-mapped."""

    rows: NDArray[np.int8]
    scales: Floats
    vocabulary: Mapping[str, int]

    @staticmethod
    def read(directory: Path) -> "WordTable":
        """Load a table. Raises OSError or ValueError."""
        rows = np.load(directory / "rows.npy", mmap_mode="r", allow_pickle=False)
        scales = np.load(directory / "scales.npy", allow_pickle=False)
        pieces = (directory / "vocabulary.txt").read_text().splitlines()
        if not len(rows) == len(scales) == len(pieces):
            raise ValueError(f"{directory} does not have one vector for each word piece")
        return WordTable(rows, scales, {piece: number for number, piece in enumerate(pieces)})

    def write(self, directory: Path) -> None:
        np.save(directory / "rows.npy", self.rows)
        np.save(directory / "scales.npy", self.scales)
        (directory / "vocabulary.txt").write_text("".join(piece + "\n" for piece in self.vocabulary))

    @staticmethod
    def of_floats(table: Floats, vocabulary: Mapping[str, int]) -> "WordTable":
        scales = np.abs(table).max(1, initial=1e-9).astype(np.float32) / 127
        return WordTable(np.rint(table / scales[:, None]).astype(np.int8), scales, vocabulary)

    def of(self, numbers: Sequence[int]) -> Floats:
        found: Floats = self.rows[numbers] * self.scales[numbers, None]
        return found


class WordEmbedder:
    """Embeds a passage as the weighted sum of its words, and a word as the sum of its pieces' vectors.

    Not thread-safe.
    """

    def __init__(self, name: str, table: WordTable) -> None:
        self._name = name
        self._table = table
        self._numbers: dict[str, int] = {}
        self._vectors = np.zeros((1024, table.rows.shape[1]), np.float32)

    @property
    def name(self) -> str:
        return self._name

    def embed(self, passages: Sequence[Passage]) -> Floats:
        rows = np.zeros((len(passages), self._vectors.shape[1]), np.float32)
        numbers: list[int] = []
        weights: list[float] = []
        ends: list[int] = []
        first = 0
        for at, passage in enumerate(passages, 1):
            for word, weight in passage.words.items():
                number = self._numbers.get(word)
                numbers.append(self._number(word) if number is None else number)
                weights.append(weight)
            ends.append(len(numbers))
            if len(numbers) >= _BLOCK or at == len(passages):
                _sum_into(rows[first:at], self._vectors, numbers, weights, ends)
                first, numbers, weights, ends = at, [], [], []
                if len(self._numbers) > _REMEMBERED:
                    self._numbers.clear()
        return normalised(rows)

    def _number(self, word: str) -> int:
        number = len(self._numbers)
        if number == len(self._vectors):
            self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
        self._numbers[word] = number
        self._vectors[number] = 0
        vocabulary = self._table.vocabulary
        for part in parts(word):
            found = [piece for piece in pieces(part, vocabulary) if piece != vocabulary[UNKNOWN]]
            if found:
                self._vectors[number] += self._table.of(found).sum(0) / math.sqrt(len(found))
        return number


def _sum_into(
    rows: Floats, vectors: Floats, numbers: Sequence[int], weights: Sequence[float], ends: Sequence[int]
) -> None:
    starts = np.array([0, *ends[:-1]])
    filled = starts < np.array(ends)
    if filled.any():
        taken = vectors[np.array(numbers)] * np.array(weights, np.float32)[:, None]
        rows[filled] = np.add.reduceat(taken, starts[filled])


def normalised(rows: Floats) -> Floats:
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    out: Floats = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return out

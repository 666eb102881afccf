"""Which chunks answer a question: by the words they share with it, and by what they mean."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sandboxes.search.embeddings.word_table import Embedder, Floats, Passage
from sandboxes.search.index.segment import VECTOR_LENGTH, IndexSegment, hash_of
from sandboxes.search.terms import STOP, terms, words

K1, B = 1.6, 0.75
MEANING = 1.0
"""How much the cosine counts beside the lexical rank; both are scaled to what the best chunk has."""

_MOST_WORDS = 256
_ROWS = 4096
_MOST_TIES = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """A segment, and which of its chunks are there: False where the file was changed or removed since."""

    segment: IndexSegment
    live: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Hit:
    path: str
    first: int
    last: int
    name: str
    score: float


@dataclass(frozen=True, slots=True)
class Question:
    """``terms``: hash → how often it is asked for."""

    terms: Counter[int]
    vector: Floats | None

    @staticmethod
    def of(text: str, embedder: Embedder | None) -> "Question":
        asked = Counter(word for word in words(text)[:_MOST_WORDS])
        telling = Counter({word: count for word, count in asked.items() if word.lower() not in STOP}) or asked
        wanted = Counter[int]()
        for word, count in telling.items():
            for term in terms(word):
                wanted[hash_of(term)] += count
        vector = None
        if embedder is not None:
            vector = embedder.embed([Passage(text, {word: float(count) for word, count in telling.items()})])[0]
        return Question(wanted, vector)


def search(question: Question, parts: Sequence[Part], limit: int, within: str = "") -> list[Hit]:
    """The best ``limit`` chunks, best first; equal ones by path and line. What has nothing to do with it is no hit.

    ``within``: only of this file or directory; what else there is still says how rare a word is.
    """
    scores = _fused(question, parts)
    hits: list[Hit] = []
    for part, score in zip(parts, scores, strict=True):
        if within:
            score[~_lie_within(part.segment, within)] = 0
        # With all that are as good as the last of them, so that which are taken hangs on nothing but their places.
        least = float(np.partition(score, -limit)[-limit]) if len(score) > limit else 0.0
        rows = np.flatnonzero((score >= least) & (score > 0))[: limit + _MOST_TIES]
        hits += [_hit(part.segment, int(row), float(score[row])) for row in rows]
    return sorted(hits, key=lambda hit: (-hit.score, hit.path, hit.first))[:limit]


def _lie_within(segment: IndexSegment, place: str) -> NDArray[np.bool_]:
    inside = [path == place or path.startswith(place + "/") for path in segment.paths]
    found: NDArray[np.bool_] = np.array(inside, np.bool_)[segment.files]
    return found


def _fused(question: Question, parts: Sequence[Part]) -> list[Floats]:
    scores = _scaled(lexical(question, parts))
    if question.vector is not None:
        meanings = _scaled([np.maximum(cosines(question.vector, part.segment), 0) * part.live for part in parts])
        scores = [score + np.float32(MEANING) * meaning for score, meaning in zip(scores, meanings, strict=True)]
    return [score * part.segment.priors for score, part in zip(scores, parts, strict=True)]


def _scaled(scores: Sequence[Floats]) -> list[Floats]:
    """So that the best has 1."""
    best = max((float(score.max(initial=0)) for score in scores), default=0)
    return [score / np.float32(best) if best else score for score in scores]


def _hit(segment: IndexSegment, row: int, score: float) -> Hit:
    path = segment.paths[int(segment.files[row])]
    return Hit(path, int(segment.firsts[row]), int(segment.lasts[row]), segment.names[row], score)


def lexical(question: Question, parts: Sequence[Part]) -> list[Floats]:
    """BM25 over the chunks that are there."""
    there = sum(int(part.live.sum()) for part in parts)
    length = sum(float(part.segment.lengths[part.live].sum()) for part in parts) / max(there, 1) or 1.0
    scores = [np.zeros(len(part.segment), np.float32) for part in parts]
    norms = [K1 * (1 - B + B * part.segment.lengths / length) for part in parts]
    for term, asked in question.terms.items():
        posted = [part.segment.posted(term) for part in parts]
        holders = sum(int(part.live[rows].sum()) for part, (rows, _) in zip(parts, posted, strict=True))
        if not holders:
            continue
        weight = asked * math.log(1 + (there - holders + 0.5) / (holders + 0.5))
        for score, norm, (rows, counts) in zip(scores, norms, posted, strict=True):
            often = counts.astype(np.float32)
            score[rows] += weight * (K1 + 1) * often / (often + norm[rows])
    return [score * part.live for score, part in zip(scores, parts, strict=True)]


def cosines(vector: Floats, segment: IndexSegment) -> Floats:
    """Of each chunk with the question; 0 where they were not embedded alike."""
    found = np.zeros(len(segment), np.float32)
    if segment.vectors.shape[1] != len(vector):
        return found
    for first in range(0, len(segment), _ROWS):
        rows = segment.vectors[first : first + _ROWS].astype(np.float32)
        # Not by BLAS, whose threads wait for each other on a busy machine and add up in no certain order.
        found[first : first + len(rows)] = np.einsum("ij,j->i", rows, vector)
    return found / VECTOR_LENGTH

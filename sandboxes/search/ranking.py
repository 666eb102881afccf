"""Rank chunks for a question by shared words (BM25) and by meaning (cosine of embeddings)."""

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
"""Weight of the cosine relative to the lexical score; both are scaled so that the best chunk has 1."""

_MOST_WORDS = 256
_ROWS = 4096
_MOST_TIES = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """A segment and a mask of its valid chunks: False if the file was changed or removed since."""

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
    """A parsed question. ``terms`` maps the hash of a term to its count in the question."""

    terms: Counter[int]
    vector: Floats | None

    @staticmethod
    def of(text: str, embedder: Embedder | None) -> "Question":
        counts = Counter(word for word in words(text)[:_MOST_WORDS])
        significant = Counter({word: count for word, count in counts.items() if word.lower() not in STOP}) or counts
        term_counts = Counter[int]()
        for word, count in significant.items():
            for term in terms(word):
                term_counts[hash_of(term)] += count
        vector = None
        if embedder is not None:
            vector = embedder.embed([Passage(text, {word: float(count) for word, count in significant.items()})])[0]
        return Question(term_counts, vector)


def search(question: Question, parts: Sequence[Part], limit: int, within: str = "") -> list[Hit]:
    """Return the best ``limit`` chunks, best first, ties by path and line. Chunks with a score of 0 are left out.

    ``within`` limits the results to this file or directory; the rarity of words is still computed over all chunks.
    """
    scores = _fused(question, parts)
    hits: list[Hit] = []
    for part, score in zip(parts, scores, strict=True):
        if within:
            score[~_is_within(part.segment, within)] = 0
        # Keep all ties of the last one, so that the selection among ties depends only on path and line.
        least = float(np.partition(score, -limit)[-limit]) if len(score) > limit else 0.0
        rows = np.flatnonzero((score >= least) & (score > 0))[: limit + _MOST_TIES]
        hits += [_hit(part.segment, int(row), float(score[row])) for row in rows]
    return sorted(hits, key=lambda hit: (-hit.score, hit.path, hit.first))[:limit]


def _is_within(segment: IndexSegment, place: str) -> NDArray[np.bool_]:
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
    """Scale the scores so that the best is 1."""
    best = max((float(score.max(initial=0)) for score in scores), default=0)
    return [score / np.float32(best) if best else score for score in scores]


def _hit(segment: IndexSegment, row: int, score: float) -> Hit:
    path = segment.paths[int(segment.files[row])]
    return Hit(path, int(segment.firsts[row]), int(segment.lasts[row]), segment.names[row], score)


def lexical(question: Question, parts: Sequence[Part]) -> list[Floats]:
    """Return the BM25 scores of the valid chunks, one array for each part."""
    live_count = sum(int(part.live.sum()) for part in parts)
    length = sum(float(part.segment.lengths[part.live].sum()) for part in parts) / max(live_count, 1) or 1.0
    scores = [np.zeros(len(part.segment), np.float32) for part in parts]
    norms = [K1 * (1 - B + B * part.segment.lengths / length) for part in parts]
    for term, query_count in question.terms.items():
        posted = [part.segment.posted(term) for part in parts]
        holders = sum(int(part.live[rows].sum()) for part, (rows, _) in zip(parts, posted, strict=True))
        if not holders:
            continue
        weight = query_count * math.log(1 + (live_count - holders + 0.5) / (holders + 0.5))
        for score, norm, (rows, counts) in zip(scores, norms, posted, strict=True):
            often = counts.astype(np.float32)
            score[rows] += weight * (K1 + 1) * often / (often + norm[rows])
    return [score * part.live for score, part in zip(scores, parts, strict=True)]


def cosines(vector: Floats, segment: IndexSegment) -> Floats:
    """Return the cosine of the question with each chunk; 0 if the segment has no embeddings of the same width."""
    found = np.zeros(len(segment), np.float32)
    if segment.vectors.shape[1] != len(vector):
        return found
    for first in range(0, len(segment), _ROWS):
        rows = segment.vectors[first : first + _ROWS].astype(np.float32)
        # Not by BLAS: its threads block each other on a busy machine, and its order of addition is not deterministic.
        found[first : first + len(rows)] = np.einsum("ij,j->i", rows, vector)
    return found / VECTOR_LENGTH

"""Rankers of chunks for a question: the farm's own and the ones that it is compared with."""

import math
import re
import subprocess
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from farm.bench.results import BenchError
from sandboxes.search.embeddings.word_table import Embedder
from sandboxes.search.index.segment import IndexSegment
from sandboxes.search.ranking import Hit, Part, Question, search
from sandboxes.search.terms import STOP

Ranker = Callable[[str, int], Sequence[Hit]]
"""Returns the best chunks for a question, best first, up to a limit."""

_WORDS = re.compile(r"\w+")
_K1, _B = 1.5, 0.75


def by_ripgrep(root: Path, segment: IndexSegment) -> Ranker:
    """Rank chunks by the number of different words of the question that ripgrep finds in them, then by the matches."""
    rows = _rows_by_path(segment)

    def rank(question: str, limit: int) -> Sequence[Hit]:
        words = sorted({word.lower() for word in _WORDS.findall(question)} - STOP)
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for path, line, word in _ripgrep(root, words):
            firsts, numbers = rows[path]
            at = bisect_right(firsts, line) - 1
            if at >= 0 and line <= segment.lasts[numbers[at]]:
                found[numbers[at]][word.lower()] += 1
        scored = ((float(len(words)) + words.total() / 1e6, row) for row, words in found.items())
        return _best(segment, scored, limit)

    return rank


def by_plain_bm25(files: Mapping[str, str], segment: IndexSegment) -> Ranker:
    """Rank chunks by textbook BM25 over lower-case words."""
    lines = {path: text.split("\n") for path, text in files.items()}
    posted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    lengths = []
    for row in range(len(segment)):
        text = "\n".join(lines[segment.paths[segment.files[row]]][segment.firsts[row] - 1 : segment.lasts[row]])
        counts = Counter(_WORDS.findall(text.lower()))
        lengths.append(counts.total())
        for word, count in counts.items():
            posted[word].append((row, count))
    mean = sum(lengths) / max(len(lengths), 1)

    def rank(question: str, limit: int) -> Sequence[Hit]:
        scores: dict[int, float] = defaultdict(float)
        for word in _WORDS.findall(question.lower()):
            holders = posted.get(word, ())
            weight = math.log(1 + (len(lengths) - len(holders) + 0.5) / (len(holders) + 0.5))
            for row, count in holders:
                norm = _K1 * (1 - _B + _B * lengths[row] / mean)
                scores[row] += weight * count * (_K1 + 1) / (count + norm)
        return _best(segment, ((score, row) for row, score in scores.items()), limit)

    return rank


def by_index(segment: IndexSegment, embedder: Embedder | None) -> Ranker:
    """Rank chunks by the farm's own search; without an embedder by shared words alone."""
    part = Part(segment, np.ones(len(segment), np.bool_))
    return lambda question, limit: search(Question.of(question, embedder), [part], limit)


def _ripgrep(root: Path, words: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    if not words:
        return
    patterns = [f"--regexp={word}" for word in words]
    done = subprocess.run(
        ["rg", "--no-config", "-n", "-o", "-i", "--null", "--no-heading", "--with-filename", *patterns, "."],
        cwd=root,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode not in (0, 1):
        raise BenchError(f"ripgrep failed: {done.stderr.decode(errors='replace')[:200]}")
    for record in done.stdout.decode(errors="surrogateescape").splitlines():
        path, _, rest = record.partition("\0")
        line, _, word = rest.partition(":")
        yield path.removeprefix("./"), int(line), word


def _rows_by_path(segment: IndexSegment) -> Mapping[str, tuple[list[int], list[int]]]:
    """Return path → the first lines of its chunks and their rows."""
    rows: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row, file in enumerate(segment.files):
        firsts, numbers = rows[segment.paths[file]]
        firsts.append(int(segment.firsts[row]))
        numbers.append(row)
    return rows


def _best(segment: IndexSegment, scored: Iterable[tuple[float, int]], limit: int) -> list[Hit]:
    hits = [
        Hit(segment.paths[segment.files[row]], int(segment.firsts[row]), int(segment.lasts[row]), segment.names[row], s)
        for s, row in scored
    ]
    return sorted(hits, key=lambda hit: (-hit.score, hit.path, hit.first))[:limit]

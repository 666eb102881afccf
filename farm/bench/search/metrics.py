"""Measure rankers by NDCG and MRR over the first ten results."""

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farm.bench.search.cases import Case, Suite
from farm.bench.search.rankers import Ranker, by_index, by_plain_bm25, by_ripgrep
from sandboxes.search.embeddings.word_table import Embedder
from sandboxes.search.index.segment import SourceFile, build

RIPGREP, BM25, CODE_BM25, HYBRID = "ripgrep", "bm25", "code_bm25", "hybrid"
FIRST = 10
_DEEP = 100
"""Chunks that are read to get the first ten files."""


@dataclass(frozen=True, slots=True)
class Quality:
    ndcg: float
    mrr: float


Answer = tuple[str, str]


def judged(ranked: Sequence[Answer], answers: frozenset[Answer]) -> Quality:
    """Return NDCG and MRR of the first ten results.

    Each correct result has gain 1; NDCG is relative to the best possible order (Järvelin and Kekäläinen).
    """
    right = [at for at, answer in enumerate(ranked[:FIRST]) if answer in answers]
    ideal = sum(1 / math.log2(at + 2) for at in range(min(len(answers), FIRST)))
    return Quality(sum(1 / math.log2(at + 2) for at in right) / ideal, 1 / (right[0] + 1) if right else 0.0)


def qualities(suites: Sequence[Suite], embedder: Embedder, on_suite: Callable[[int], None]) -> Mapping[str, Quality]:
    """Return ranker → mean quality over all questions of all suites. All rankers rank the same chunks."""
    found: dict[str, list[Quality]] = {name: [] for name in (RIPGREP, BM25, CODE_BM25, HYBRID)}
    for number, suite in enumerate(suites):
        on_suite(number)
        with tempfile.TemporaryDirectory(prefix="farm-search-") as directory:
            for name, rank in _rankers(suite, Path(directory), embedder):
                found[name] += [_judged(rank, case) for case in suite.cases]
    return {
        name: Quality(
            sum(each.ndcg for each in of_cases) / len(of_cases), sum(each.mrr for each in of_cases) / len(of_cases)
        )
        for name, of_cases in found.items()
    }


def sources(files: Mapping[str, str]) -> list[SourceFile]:
    contents = {path: text.encode("utf-8", "surrogateescape") for path, text in files.items()}
    return [SourceFile(path, hashlib.sha256(content).digest(), content) for path, content in contents.items()]


def _rankers(suite: Suite, root: Path, embedder: Embedder) -> Iterator[tuple[str, Ranker]]:
    for path, text in suite.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    segment = build(sources(suite.files), embedder)
    yield RIPGREP, by_ripgrep(root, segment)
    yield BM25, by_plain_bm25(suite.files, segment)
    yield CODE_BM25, by_index(segment, None)
    yield HYBRID, by_index(segment, embedder)


def _judged(rank: Ranker, case: Case) -> Quality:
    of_files = all(not name for _, name in case.answers)
    ranked = dict.fromkeys((hit.path, "" if of_files else hit.name) for hit in rank(case.question, _DEEP))
    return judged(list(ranked), case.answers)

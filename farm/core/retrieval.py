"""Retrieval tasks, in which the policy must find code and not change it, and the score of an answer.

Imports only the standard library, because a generated task contains a copy of this file for use without the farm.
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

LineRanges = tuple[tuple[int, int], ...]
"""Ranges of lines, counted from 1, both ends included; sorted, with a gap between any two."""

CONTEXT_LINES = 8
"""Maximum distance from an expected line at which a line counts as its context."""

NARROW_SHARE = 0.5
"""The ranges in an answer's file are narrow if at least this share of their lines is expected or context."""


@dataclass(frozen=True, slots=True)
class FileLines:
    """Lines of a file. ``path`` is normalised and relative to the workspace; it begins with ``..`` if it is outside."""

    path: str
    lines: LineRanges


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The limits and the expected answer of a retrieval task.

    At most ``calls_per_turn`` calls of reading tools are executed per message. The policy must answer within
    ``max_turns`` messages. ``expected`` has each path once, with at least one line. ``beta`` is the weight of recall
    relative to precision.
    """

    calls_per_turn: int
    max_turns: int
    beta: float
    expected: tuple[FileLines, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of an answer with the expected files or lines, as fractions; 0 for an empty answer."""

    precision: float
    recall: float
    f: float


@dataclass(frozen=True, slots=True)
class Score:
    files: Agreement
    lines: Agreement

    @property
    def reward(self) -> float:
        """The mean of both F-scores: 1 for exactly the expected answer, 0 if no line is right."""
        return (self.files.f + self.lines.f) / 2

    @property
    def components(self) -> Mapping[str, float]:
        return {
            f"{kind}_{name}": value
            for kind, agreement in (("files", self.files), ("lines", self.lines))
            for name, value in (("precision", agreement.precision), ("recall", agreement.recall), ("f", agreement.f))
        }


def gather(named: Iterable[tuple[str, Iterable[Sequence[int]]]], workspace: str) -> tuple[FileLines, ...]:
    """Merge named paths and ranges, so that each file and each line occurs once, sorted.

    Paths are absolute or relative to ``workspace``.
    """
    by_path: dict[str, list[tuple[int, int]]] = {}
    for path, ranges in named:
        by_path.setdefault(_relative(path, workspace), []).extend((first, last) for first, last in ranges)
    return tuple(FileLines(path, _merged(by_path[path])) for path in sorted(by_path))


def score(expected: Sequence[FileLines], answer: Sequence[FileLines], beta: float) -> Score:
    """Score an answer against the expected lines; both in the form of ``gather``.

    A file counts as found if the answer has an expected line of it and its ranges in the file are narrow: at least
    ``NARROW_SHARE`` of their lines are expected, or at most ``CONTEXT_LINES`` away from an expected line. Otherwise the
    right path with all lines would earn half of the reward. Files and lines that do not exist count as wrong.
    """
    expected_lines, named = ({file.path: file.lines for file in files} for files in (expected, answer))
    common = {path: _count_common(expected_lines[path], named[path]) for path in expected_lines.keys() & named.keys()}
    files_found = sum(right > 0 and _is_narrow(expected_lines[path], named[path]) for path, right in common.items())
    return Score(
        files=_compare(files_found, len(named), len(expected_lines), beta),
        lines=_compare(
            sum(common.values()),
            sum(map(_count_lines, named.values())),
            sum(map(_count_lines, expected_lines.values())),
            beta,
        ),
    )


def _is_narrow(expected: LineRanges, answer: LineRanges) -> bool:
    with_context = _merged((max(1, first - CONTEXT_LINES), last + CONTEXT_LINES) for first, last in expected)
    return _count_common(with_context, answer) >= NARROW_SHARE * _count_lines(answer)


def f_measure(precision: float, recall: float, beta: float) -> float:
    """Return van Rijsbergen's F: ``(1 + β²)PR / (β²P + R)``, or 0 if P and R are 0 (Information Retrieval, 1979)."""
    weight = beta * beta
    denominator = weight * precision + recall
    return min(1.0, (1 + weight) * precision * recall / denominator) if denominator else 0.0


def _compare(common: int, answer: int, expected: int, beta: float) -> Agreement:
    precision = common / answer if answer else 0.0
    recall = common / expected if expected else 0.0
    return Agreement(precision, recall, f_measure(precision, recall, beta))


def _relative(path: str, workspace: str) -> str:
    absolute = posixpath.normpath(posixpath.join(workspace, path))
    return posixpath.relpath("/" + absolute.lstrip("/"), workspace)


def _merged(ranges: Iterable[tuple[int, int]]) -> LineRanges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _count_lines(ranges: LineRanges) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _count_common(one: LineRanges, other: LineRanges) -> int:
    """Return the number of lines that are in both."""
    total, at, at_other = 0, 0, 0
    while at < len(one) and at_other < len(other):
        total += max(0, min(one[at][1], other[at_other][1]) - max(one[at][0], other[at_other][0]) + 1)
        if one[at][1] < other[at_other][1]:
            at += 1
        else:
            at_other += 1
    return total

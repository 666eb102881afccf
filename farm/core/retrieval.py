"""Retrieval tasks: code is to be found, not changed; and what an answer is worth.

Imports nothing but the standard library: a made task carries a copy of this file for plain Harbor.
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Ranges = tuple[tuple[int, int], ...]
"""Of lines, from 1, both ends included; in order, with a gap between any two."""

CONTEXT_LINES = 8
"""A line this close to an expected line is context of it."""

NARROW_SHARE = 0.5
"""The ranges given in a file are narrow if at least this share of their lines is expected or context."""


@dataclass(frozen=True, slots=True)
class FileLines:
    """``path`` is relative to the workspace and normalised; one outside it begins with ``..``."""

    path: str
    lines: Ranges


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The bounds and the answer of such a task.

    ``calls_per_turn`` reading calls are run of each of ``max_turns`` messages, of which the last at the latest must
    answer. ``expected`` names each path once and at least one line. ``beta``: so many times as much as precision does
    recall matter.
    """

    calls_per_turn: int
    max_turns: int
    beta: float
    expected: tuple[FileLines, ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of what was given with what was expected, be it files or lines; each a fraction, 0 where nothing was given."""

    precision: float
    recall: float
    f: float


@dataclass(frozen=True, slots=True)
class Score:
    files: Agreement
    lines: Agreement

    @property
    def reward(self) -> float:
        """The mean of the two F; 1 for exactly what was expected, 0 where no line is right."""
        return (self.files.f + self.lines.f) / 2

    @property
    def components(self) -> Mapping[str, float]:
        return {
            f"{kind}_{name}": value
            for kind, seen in (("files", self.files), ("lines", self.lines))
            for name, value in (("precision", seen.precision), ("recall", seen.recall), ("f", seen.f))
        }


def gather(named: Iterable[tuple[str, Iterable[Sequence[int]]]], workspace: str) -> tuple[FileLines, ...]:
    """What ``named`` says, each file and each line once, in order. Paths may be absolute, or begin at ``workspace``."""
    found: dict[str, list[tuple[int, int]]] = {}
    for path, ranges in named:
        found.setdefault(_relative(path, workspace), []).extend((first, last) for first, last in ranges)
    return tuple(FileLines(path, _merged(found[path])) for path in sorted(found))


def score(expected: Sequence[FileLines], given: Sequence[FileLines], beta: float) -> Score:
    """Compare what was given with what was expected; both as ``gather`` returns them.

    A file counts as found if an expected line of it is given and its ranges are narrow: at least ``NARROW_SHARE`` of
    the lines given in it are expected or at most ``CONTEXT_LINES`` away from an expected line. Otherwise the right name
    with all lines of the file would earn half of the reward. Files and lines that do not exist count as wrong ones.
    """
    wanted, named = ({file.path: file.lines for file in files} for files in (expected, given))
    common = {path: _common(wanted[path], named[path]) for path in wanted.keys() & named.keys()}
    found = sum(right > 0 and _is_narrow(wanted[path], named[path]) for path, right in common.items())
    return Score(
        files=_agreement(found, len(named), len(wanted), beta),
        lines=_agreement(
            sum(common.values()),
            sum(map(_count, named.values())),
            sum(map(_count, wanted.values())),
            beta,
        ),
    )


def _is_narrow(expected: Ranges, given: Ranges) -> bool:
    near = _merged((max(1, first - CONTEXT_LINES), last + CONTEXT_LINES) for first, last in expected)
    return _common(near, given) >= NARROW_SHARE * _count(given)


def f_measure(precision: float, recall: float, beta: float) -> float:
    """van Rijsbergen's F: ``(1 + β²)PR / (β²P + R)``, 0 where both are (Information Retrieval, 2nd ed. 1979, ch. 7)."""
    weight = beta * beta
    below = weight * precision + recall
    return min(1.0, (1 + weight) * precision * recall / below) if below else 0.0


def _agreement(common: int, given: int, expected: int, beta: float) -> Agreement:
    precision = common / given if given else 0.0
    recall = common / expected if expected else 0.0
    return Agreement(precision, recall, f_measure(precision, recall, beta))


def _relative(path: str, workspace: str) -> str:
    whole = posixpath.normpath(posixpath.join(workspace, path))
    return posixpath.relpath("/" + whole.lstrip("/"), workspace)


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def _count(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _common(one: Ranges, other: Ranges) -> int:
    """How many lines are in both."""
    total, at, beside = 0, 0, 0
    while at < len(one) and beside < len(other):
        total += max(0, min(one[at][1], other[beside][1]) - max(one[at][0], other[beside][0]) + 1)
        if one[at][1] < other[beside][1]:
            at += 1
        else:
            beside += 1
    return total

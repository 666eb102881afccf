"""Line differences in bounded time, because the policy may write lines that take very long to compare."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_COMPARISONS = 2_000_000
MAX_COMPARISONS_PER_DIFF = 250_000


@dataclass(slots=True)
class ComparisonBudget:
    """The comparisons that remain for all files of a patch (``left``), and the maximum for one file (``per_diff``)."""

    left: int = MAX_COMPARISONS
    per_diff: int = MAX_COMPARISONS_PER_DIFF


@dataclass(frozen=True, slots=True)
class LineEdit:
    """A replacement of ``old[old_from:old_to]`` by ``new[new_from:new_to]``."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def find_edits(old: Sequence[str], new: Sequence[str], budget: ComparisonBudget) -> list[LineEdit]:
    """Return the edits between two texts in order, none adjacent to the next.

    They change as few lines as possible, or all lines between the common start and end if ``budget`` is exceeded.
    """
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    numbers: dict[str, int] = {}
    before = [numbers.setdefault(line, len(numbers)) for line in old[head : len(old) - tail]]
    after = [numbers.setdefault(line, len(numbers)) for line in new[head : len(new) - tail]]
    edits: list[LineEdit] = []
    at_old, at_new = 0, 0
    for same_old, same_new in [*_common_subsequence(before, after, budget), (len(before), len(after))]:
        if (same_old, same_new) != (at_old, at_new):
            edits.append(LineEdit(head + at_old, head + same_old, head + at_new, head + same_new))
        at_old, at_new = same_old + 1, same_new + 1
    return edits


def _common_subsequence(old: Sequence[int], new: Sequence[int], budget: ComparisonBudget) -> list[tuple[int, int]]:
    """Return the index pairs of a longest common subsequence (Myers 1986, greedy forward).

    Return none, and charge ``budget``, if it is exceeded.
    """
    if not old or not new:
        return []
    granted = left = min(budget.left, budget.per_diff)
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    while left > 0:
        distance = len(trace)
        trace.append(dict(reach))
        left -= len(reach)
        for diagonal in range(-distance, distance + 1, 2):
            down = _moves_down(reach, diagonal, distance)
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while left > 0 and x < len(old) and y < len(new) and old[x] == new[y]:
                x, y, left = x + 1, y + 1, left - 1
            reach[diagonal] = x
            if x >= len(old) and y >= len(new):
                budget.left -= granted - left
                return _walk_back(trace, len(old), len(new))
    budget.left -= granted
    return []


def _moves_down(reach: dict[int, int], diagonal: int, distance: int) -> bool:
    return diagonal == -distance or (diagonal != distance and reach[diagonal - 1] < reach[diagonal + 1])


def _walk_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trace) - 1, -1, -1):
        reach, diagonal = trace[distance], x - y
        down = _moves_down(reach, diagonal, distance)
        x_before = reach[diagonal + 1] if down else reach[diagonal - 1]
        y_before = x_before - (diagonal + 1 if down else diagonal - 1)
        x_after, y_after = (x_before, y_before + 1) if down else (x_before + 1, y_before)
        while x > x_after and y > y_after:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = x_before, y_before
    return pairs[::-1]

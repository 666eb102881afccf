"""Line differences at a bounded price: whoever wrote the lines may want the comparison to take for ever."""

from collections.abc import Sequence
from dataclasses import dataclass

COMPARISONS = 2_000_000
COMPARISONS_AT_ONCE = 250_000


@dataclass(slots=True)
class ComparisonBudget:
    """How many comparisons may still be made, all in all and for one difference; shared by those of one patch."""

    left: int = COMPARISONS
    at_once: int = COMPARISONS_AT_ONCE


@dataclass(frozen=True, slots=True)
class LineEdit:
    """``old[old_from:old_to]`` becomes ``new[new_from:new_to]``."""

    old_from: int
    old_to: int
    new_from: int
    new_to: int


def find_edits(old: Sequence[str], new: Sequence[str], allowance: ComparisonBudget) -> list[LineEdit]:
    """In order, none touching the next; as few lines as can be, or all between the common ends past the allowance."""
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
    for same_old, same_new in [*_common(before, after, allowance), (len(before), len(after))]:
        if (same_old, same_new) != (at_old, at_new):
            edits.append(LineEdit(head + at_old, head + same_old, head + at_new, head + same_new))
        at_old, at_new = same_old + 1, same_new + 1
    return edits


def _common(old: Sequence[int], new: Sequence[int], allowance: ComparisonBudget) -> list[tuple[int, int]]:
    """Index pairs of a longest common subsequence (Myers 1986, greedy forward); none where that costs too much."""
    if not old or not new:
        return []
    granted = budget = min(allowance.left, allowance.at_once)
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    while budget > 0:
        distance = len(trace)
        trace.append(dict(reach))
        budget -= len(reach)
        for diagonal in range(-distance, distance + 1, 2):
            down = _goes_down(reach, diagonal, distance)
            x = reach[diagonal + 1] if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while budget > 0 and x < len(old) and y < len(new) and old[x] == new[y]:
                x, y, budget = x + 1, y + 1, budget - 1
            reach[diagonal] = x
            if x >= len(old) and y >= len(new):
                allowance.left -= granted - budget
                return _walk_back(trace, len(old), len(new))
    allowance.left -= granted
    return []


def _goes_down(reach: dict[int, int], diagonal: int, distance: int) -> bool:
    return diagonal == -distance or (diagonal != distance and reach[diagonal - 1] < reach[diagonal + 1])


def _walk_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for distance in range(len(trace) - 1, -1, -1):
        reach, diagonal = trace[distance], x - y
        down = _goes_down(reach, diagonal, distance)
        x_before = reach[diagonal + 1] if down else reach[diagonal - 1]
        y_before = x_before - (diagonal + 1 if down else diagonal - 1)
        x_after, y_after = (x_before, y_before + 1) if down else (x_before + 1, y_before)
        while x > x_after and y > y_after:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = x_before, y_before
    return pairs[::-1]

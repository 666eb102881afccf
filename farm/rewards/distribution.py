"""A histogram of rewards, with their sum and range."""

import bisect
from dataclasses import dataclass, field

BOUNDS = (-1.0, -0.5, -0.1, 0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1.0)
"""Inclusive upper bounds of the histogram's buckets; one more bucket has the rewards above the last bound."""


@dataclass(slots=True)
class Distribution:
    """Statistics of rewards. ``counts[i]`` is the number of rewards above ``BOUNDS[i - 1]`` and up to ``BOUNDS[i]``.

    ``lowest`` and ``highest`` are None if there is no reward.
    """

    judged: int = 0
    total: float = 0.0
    lowest: float | None = None
    highest: float | None = None
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))

    @property
    def bounds(self) -> tuple[float, ...]:
        return BOUNDS

    @property
    def mean(self) -> float | None:
        return self.total / self.judged if self.judged else None

    def add(self, reward: float | None) -> None:
        if reward is None:
            return
        self.judged += 1
        self.total += reward
        self.lowest = reward if self.lowest is None else min(self.lowest, reward)
        self.highest = reward if self.highest is None else max(self.highest, reward)
        self.counts[bisect.bisect_left(BOUNDS, reward)] += 1

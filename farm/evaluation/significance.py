"""Intervals and tests that resample tasks. A task with all its episodes is one unit, because its episodes depend on it.

Each result depends on its values, their order and the seed alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

RESAMPLES = 10_000
"""The number of bootstrap samples."""

SIGN_SAMPLES = 100_000
"""The number of sign changes that are drawn if there are too many to count all."""

MOST_EXACT = 16
"""The number of tasks up to which all sign changes are counted; 2**16 are 65,536."""

FEWEST_TASKS = 10
"""The number of tasks below which no difference is claimed.

With 5 tasks no two-sided p-value is below 1/16, and percentile intervals of so few units are too narrow.
"""

LEVEL = 0.05
"""A difference is claimed if its p-value is below this. Intervals hold 1 - LEVEL."""

_AT_ONCE = 2_000_000
"""The number of drawn values that are in memory at a time."""

_TIES = 1e-12
"""Sums that differ by less count as equal, because floating-point sums depend on their order."""


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PermutationTest:
    """``p`` is two-sided. ``method``: ``exact`` if all sign changes were counted."""

    p: float
    method: Literal["exact", "sampled"]


def bootstrap_interval(values: Sequence[float], seed: int) -> Interval | None:
    """Return the percentile interval of the mean of ``values``, one of each task, by drawing tasks with replacement.

    None for fewer than two tasks, and if all values are equal: samples of them have no spread, which says nothing about
    other tasks. Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
    """
    if len(set(values)) < 2:
        return None
    found = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // len(found))
    means = np.concatenate(
        [
            found[generator.integers(0, len(found), size=(min(step, RESAMPLES - start), len(found)))].mean(axis=1)
            for start in range(0, RESAMPLES, step)
        ]
    )
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return Interval(float(low), float(high))


def permutation_test(differences: Sequence[float], seed: int) -> PermutationTest | None:
    """Return the test that the labels of two policies are exchangeable within each task.

    Then each task's difference may have either sign. The p-value is the fraction of sign changes whose sum is at least
    as far from 0 as the observed one. If signs are drawn, the observed ones count as one more draw, so p is never 0
    (Phipson and Smyth 2010). None without tasks. Source: Fisher 1935, The Design of Experiments, section 21.
    """
    if not differences:
        return None
    found = np.asarray(differences, dtype=np.float64)
    bound = abs(float(found.sum())) - _TIES * max(1.0, float(np.abs(found).sum()))
    if len(found) <= MOST_EXACT:
        bits = np.arange(2 ** len(found), dtype=np.int64)[:, None] >> np.arange(len(found)) & 1
        sums = np.abs((1 - 2 * bits) @ found)
        return PermutationTest(float((sums >= bound).mean()), "exact")
    generator = np.random.default_rng(seed)
    step = max(1, _AT_ONCE // len(found))
    extreme = 0
    for start in range(0, SIGN_SAMPLES, step):
        signs = 1 - 2 * generator.integers(0, 2, size=(min(step, SIGN_SAMPLES - start), len(found)))
        extreme += int((np.abs(signs @ found) >= bound).sum())
    return PermutationTest((1 + extreme) / (1 + SIGN_SAMPLES), "sampled")


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted for their number. Source: Holm 1979, Scandinavian Journal of Statistics 6."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted

"""Estimators for k tries at one task, from n judged episodes of it."""

from collections.abc import Sequence
from math import comb


def pass_at_k(judged: int, solved: int, k: int) -> float | None:
    """Return the unbiased estimate that at least one of ``k`` tries solves the task: 1 - C(n - c, k) / C(n, k).

    None if fewer than ``k`` episodes were judged. Source: Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    if judged < k:
        return None
    return 1.0 - comb(judged - solved, k) / comb(judged, k)


def best_of_k(rewards: Sequence[float], k: int) -> float | None:
    """Return the unbiased estimate of the mean of the highest of ``k`` rewards, drawn without replacement.

    With rewards in ascending order, the i-th (from 1) is the highest of C(i - 1, k - 1) of the C(n, k) samples. None if
    there are fewer than ``k`` rewards. For rewards of 0 and 1 it equals ``pass_at_k``.
    """
    if len(rewards) < k:
        return None
    total = comb(len(rewards), k)
    return sum(comb(i, k - 1) / total * reward for i, reward in enumerate(sorted(rewards)))


def doubling(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on, and ``most`` itself as the last."""
    steps = [1]
    while steps[-1] * 2 <= most:
        steps.append(steps[-1] * 2)
    return tuple(dict.fromkeys((*steps, most)))

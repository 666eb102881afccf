"""Estimators for k tries: known values, and properties against full enumeration."""

from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.evaluation.estimators import best_of_k, doubling, pass_at_k

REWARDS = st.lists(st.floats(-5, 5), min_size=1, max_size=7)


@pytest.mark.parametrize(
    ("judged", "solved", "k", "expected"),
    [(10, 3, 1, 0.3), (10, 3, 5, 1 - 21 / 252), (5, 5, 2, 1.0), (5, 0, 5, 0.0), (4, 1, 4, 1.0), (200, 13, 1, 0.065)],
)
def test_pass_at_k_has_known_values(judged: int, solved: int, k: int, expected: float) -> None:
    assert pass_at_k(judged, solved, k) == pytest.approx(expected)


def test_fewer_judged_episodes_than_k_give_no_estimate() -> None:
    assert pass_at_k(3, 1, 4) is None
    assert best_of_k([1.0, 0.0], 3) is None
    assert pass_at_k(0, 0, 1) is None


@given(REWARDS, st.data())
def test_best_of_k_is_mean_over_all_samples(rewards: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(rewards)))
    expected = fmean(max(sample) for sample in combinations(rewards, k))
    assert best_of_k(rewards, k) == pytest.approx(expected)


@given(st.integers(1, 30), st.data())
def test_pass_at_k_equals_best_of_k_for_rewards_of_0_and_1(judged: int, data: st.DataObject) -> None:
    solved, k = data.draw(st.integers(0, judged)), data.draw(st.integers(1, judged))
    assert pass_at_k(judged, solved, k) == pytest.approx(best_of_k([1.0] * solved + [0.0] * (judged - solved), k))


@given(st.integers(1, 40), st.data())
def test_pass_at_k_grows_with_k(judged: int, data: st.DataObject) -> None:
    solved = data.draw(st.integers(0, judged))
    rates = [pass_at_k(judged, solved, k) for k in range(1, judged + 1)]
    assert rates == sorted(rate for rate in rates if rate is not None)
    assert rates[0] == pytest.approx(solved / judged)


def test_doubling_ends_with_largest_k() -> None:
    assert [doubling(most) for most in (1, 2, 3, 8, 10)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4, 8), (1, 2, 4, 8, 10)]

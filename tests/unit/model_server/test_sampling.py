"""Sampling: limits, seeds, and the shares with which tokens are drawn."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from farm.model_server.errors import RequestError
from farm.model_server.sampling import Sampler, SamplingParams, check_params, top_tokens

LOGPROBS = np.log([0.5, 0.3, 0.15, 0.05])
PARAMS = SamplingParams(max_tokens=8)


def drawn(params: SamplingParams, number: int = 2000) -> Counter[int]:
    sampler = Sampler(params, 3)
    return Counter(sampler.draw(LOGPROBS, ()) for _ in range(number))


def test_tokens_are_drawn_by_their_probabilities() -> None:
    shares = drawn(PARAMS)
    assert [shares[token] / 2000 for token in range(4)] == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.04)


@pytest.mark.parametrize(
    ("params", "tokens"),
    [
        (replace(PARAMS, temperature=0.0), {0}),
        (replace(PARAMS, top_k=2), {0, 1}),
        (replace(PARAMS, top_p=0.6), {0, 1}),
        (replace(PARAMS, top_p=0.5), {0}),
        (replace(PARAMS, min_p=0.2), {0, 1, 2}),
        (replace(PARAMS, temperature=0.1), {0, 1}),
        (replace(PARAMS, top_k=3, top_p=0.99, temperature=2.0), {0, 1, 2}),
    ],
)
def test_limits_keep_the_most_likely_tokens(params: SamplingParams, tokens: set[int]) -> None:
    assert set(drawn(params)) == tokens


def test_forbidden_and_allowed_tokens_bound_the_draw() -> None:
    sampler = Sampler(PARAMS, 0)
    assert {sampler.draw(LOGPROBS, (0, 1)) for _ in range(200)} == {2, 3}
    assert {sampler.draw(LOGPROBS, (), np.array([1, 3])) for _ in range(200)} == {1, 3}
    greedy = Sampler(replace(PARAMS, temperature=0.0), 0)
    assert greedy.draw(LOGPROBS, (), np.array([1, 3])) == 1
    assert greedy.draw(LOGPROBS, (1,), np.array([1])) == 0


def test_equal_seeds_draw_equal_tokens() -> None:
    def tokens(seed: int | None, own: int) -> list[int]:
        sampler = Sampler(replace(PARAMS, seed=seed), own)
        return [sampler.draw(LOGPROBS, ()) for _ in range(50)]

    assert tokens(7, 1) == tokens(7, 2)
    assert tokens(-7, 1) == tokens(-7, 2)
    assert tokens(7, 1) != tokens(8, 1)
    assert tokens(None, 1) == tokens(None, 1) != tokens(None, 2)


def test_top_tokens_are_ordered() -> None:
    (first, second) = top_tokens(LOGPROBS, 2)
    assert (first[0], second[0]) == (0, 1)
    assert (first[1], second[1]) == pytest.approx((np.log(0.5), np.log(0.3)))
    assert top_tokens(LOGPROBS, 0) == ()


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"stop": ("",)}, "stop"),
    ],
)
def test_impossible_parameters_are_refused(change: dict[str, object], cause: str) -> None:
    with pytest.raises(RequestError, match=cause) as raised:
        check_params(replace(PARAMS, **change))  # type: ignore[arg-type]
    assert raised.value.field == cause

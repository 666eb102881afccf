"""Draw tokens from a distribution: temperature, top-k, top-p, min-p, and limits to allowed tokens.

Reported log-probabilities are those of the model's distribution at temperature 1, before any of these parameters, as
vLLM reports by default (``logprobs_mode=raw_logprobs``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farm.model_server.errors import RequestError

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature the most likely token is taken."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one reply is sampled. ``top_k`` 0 and ``top_p`` 1 keep all tokens.

    ``seed`` None takes a seed from the engine's own. ``require_call`` keeps only the tokens of a well-formed call.
    ``top_logprobs`` alternatives are reported for each token.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    ignore_eos: bool = False
    require_call: bool = False
    top_logprobs: int = 0


class Sampler:
    """The random numbers of one reply: one for each token, from the seed alone."""

    def __init__(self, params: SamplingParams, seed: int) -> None:
        self._params = params
        self._random = np.random.default_rng(seed if params.seed is None else params.seed % 2**63)

    def draw(
        self, logprobs: NDArray[np.float64], forbidden: Sequence[int], allowed: NDArray[np.intp] | None = None
    ) -> int:
        """Return one token of a distribution, never one of ``forbidden``, and only of ``allowed`` if that is set."""
        params, uniform = self._params, self._random.random()
        scores = logprobs
        if allowed is not None:
            scores = np.full_like(logprobs, -np.inf)
            scores[allowed] = logprobs[allowed]
        if forbidden:
            scores = scores.copy()
            scores[list(forbidden)] = -np.inf
        if not np.isfinite(scores.max()):  # every allowed token is forbidden
            scores = logprobs
        if params.temperature < GREEDY_TEMPERATURE:
            return int(scores.argmax())
        weights = self._weights(scores)
        totals = weights.cumsum()
        at = int(np.searchsorted(totals, uniform * totals[-1], side="right"))
        return min(at, int(weights.nonzero()[0][-1]))

    def _weights(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights of tokens after the temperature and the limits. Their sum need not be 1."""
        params = self._params
        weights: NDArray[np.float64] = np.exp((scores - scores.max()) / params.temperature)
        if params.min_p > 0.0:
            weights[weights < params.min_p] = 0.0
        if 0 < params.top_k < len(weights):
            order = np.argsort(-weights, kind="stable")
            weights[order[params.top_k :]] = 0.0
        if params.top_p < 1.0:
            order = np.argsort(-weights, kind="stable")
            before = weights[order].cumsum() - weights[order]
            weights[order[before >= params.top_p * weights.sum()]] = 0.0
        return weights


def top_tokens(logprobs: NDArray[np.float64], number: int) -> tuple[tuple[int, float], ...]:
    """Return the most likely tokens with their log-probabilities, the most likely first."""
    if not number:
        return ()
    order = np.argsort(-logprobs, kind="stable")[:number]
    return tuple((int(token), float(logprobs[token])) for token in order)


def check_params(params: SamplingParams) -> None:
    """Raise RequestError for parameters that no reply can be sampled with."""
    limits: tuple[tuple[str, object, bool], ...] = (
        ("max_tokens must be at least 1", params.max_tokens, params.max_tokens >= 1),
        ("temperature must be a number from 0 to 100", params.temperature, 0.0 <= params.temperature <= 100.0),
        ("top_p must be in (0, 1]", params.top_p, 0.0 < params.top_p <= 1.0),
        ("top_k must be 0 (disable), -1, or at least 1", params.top_k, params.top_k >= 0),
        ("min_p must be in [0, 1]", params.min_p, 0.0 <= params.min_p <= 1.0),
        ("min_tokens must be from 0 to max_tokens", params.min_tokens, 0 <= params.min_tokens <= params.max_tokens),
        ("stop cannot contain an empty string", params.stop, "" not in params.stop),
    )
    for rule, value, holds in limits:
        if not holds:
            raise RequestError(f"{rule}, got {value!r}", rule.partition(" ")[0])

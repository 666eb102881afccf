"""Log-probabilities of a reply by a fresh pass: nothing of the engine that sampled it is used."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from farm.core.rollout import Segment
from farm.model_server.errors import RequestError
from farm.model_server.generation import Span
from farm.model_server.model import load_model

TOLERANCE = 1e-6
"""The difference above which a log-probability is a mismatch. float32 values of a reply are closer than that."""


def recompute_logprobs(
    seed: int, prompt_ids: Sequence[int], token_ids: Sequence[int], spans: Sequence[Span]
) -> NDArray[np.float64]:
    """Return float64[tokens]: each token's log-probability under the weights of its span and all tokens before it.

    Raises RequestError if the spans do not cover the tokens in their order, or an id is outside the vocabulary.
    """
    end = 0
    for span in spans:
        if span.start != end or span.end < span.start:
            raise RequestError(f"spans: one starts at {span.start} and ends at {span.end}; it must start at {end}")
        end = span.end
    if end != len(token_ids):
        raise RequestError(f"spans end at {end}, but there are {len(token_ids)} tokens")
    parts = [
        load_model(seed, span.version).logprobs_of(
            [*prompt_ids, *token_ids[: span.start]], token_ids[span.start : span.end]
        )
        for span in spans
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def count_mismatches(reported: Sequence[float], recomputed: Sequence[float], tolerance: float = TOLERANCE) -> int:
    """Return the number of tokens whose reported log-probability differs from the recomputed one."""
    difference = np.abs(np.asarray(reported, dtype=np.float64) - np.asarray(recomputed, dtype=np.float64))
    return int(np.count_nonzero(~(difference <= tolerance * np.maximum(1.0, np.abs(recomputed)))))


def count_segment_mismatches(segment: Segment, seed: int, tolerance: float = TOLERANCE) -> int:
    """Return the number of sampled tokens of a segment whose log-probability a fresh pass does not give.

    A sampled token without a weight version counts as a mismatch, because nothing says which weights to use.
    """
    ids, reported, left = segment.token_ids.tolist(), segment.logprobs.tolist(), bytearray(segment.loss_mask)
    wrong = 0
    for span in segment.weight_versions:
        length = span.end - span.start
        fresh = recompute_logprobs(seed, ids[: span.start], ids[span.start : span.end], [Span(span.version, 0, length)])
        wrong += count_mismatches(reported[span.start : span.end], fresh.tolist(), tolerance)
        left[span.start : span.end] = bytes(length)
    return wrong + sum(left)

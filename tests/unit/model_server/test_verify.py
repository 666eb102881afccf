"""Verification: spans that cover the tokens, and the count of mismatches."""

import pytest

from farm.model_server.errors import RequestError
from farm.model_server.generation import Span
from farm.model_server.verify import count_mismatches, recompute_logprobs


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [Span(1, 0, 2)],
        [Span(1, 0, 4)],
        [Span(1, 1, 3)],
        [Span(1, 0, 2), Span(2, 1, 3)],
        [Span(1, 0, 3), Span(1, 3, 2)],
    ],
)
def test_spans_that_do_not_cover_are_refused(spans: list[Span]) -> None:
    with pytest.raises(RequestError, match="spans"):
        recompute_logprobs(0, [65], [66, 67, 68], spans)


def test_spans_use_the_weights_of_their_versions() -> None:
    mixed = recompute_logprobs(0, [65], [66, 67, 68], [Span(1, 0, 1), Span(2, 1, 3)])
    first, second = (recompute_logprobs(0, [65], [66, 67, 68], [Span(version, 0, 3)]) for version in (1, 2))
    assert mixed == pytest.approx([first[0], second[1], second[2]], abs=1e-12)
    assert recompute_logprobs(0, [65], [], []).tolist() == []


def test_mismatches_are_counted() -> None:
    assert count_mismatches([-1.0, -2.0, -3.0], [-1.0 + 1e-9, -2.1, float("nan")]) == 2
    assert count_mismatches([], []) == 0

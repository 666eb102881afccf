"""Log-probabilities of the next token after the last two tokens, counted from the corpus with back-off."""

from collections import Counter, defaultdict
from functools import cache

import numpy as np
from numpy.typing import NDArray

from farm.model_server.tokenizer import CONTROL, MARKUP, Tokenizer, corpus, load_tokenizer

_BACK_OFF = 0.35
"""The share of a longer context's distribution that comes from the context that is one token shorter."""

_FLOOR = 1e-4
"""The share of the uniform distribution over tokens that are not special."""

_SPECIAL_FLOOR = 1e-7
"""The share of each special token, so that every token has a finite log-probability."""


class NGrams:
    """``table`` float64[rows, vocabulary]: a row for each last token, then a row for each pair in the corpus."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        size = tokenizer.size
        ids = tokenizer.encode(text, (*CONTROL, *MARKUP))
        follow = np.zeros((size, size))
        np.add.at(follow, (ids[:-1], ids[1:]), 1.0)
        after_pairs: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
        for first, second, third in zip(ids, ids[1:], ids[2:], strict=False):
            after_pairs[first, second][third] += 1
        alone = _smooth(np.bincount(ids, minlength=size).astype(np.float64), tokenizer)
        totals = follow.sum(axis=1, keepdims=True)
        share = np.where(totals > 0, _BACK_OFF, 1.0)
        single = (1 - share) * follow / np.maximum(totals, 1.0) + share * alone
        rows = [single]
        self._row_of_pair: dict[tuple[int, int], int] = {}
        for pair, counts in after_pairs.items():
            row = _BACK_OFF * single[pair[1]]
            for token, count in counts.items():
                row[token] += (1 - _BACK_OFF) * count / counts.total()
            self._row_of_pair[pair] = size + len(rows) - 1
            rows.append(row[None])
        self.table: NDArray[np.float64] = np.log(np.concatenate(rows))
        self._first = tokenizer.special["<|endoftext|>"]

    def row(self, before_last: int | None, last: int | None) -> int:
        """Return the row of a context; ``None`` stands for a token before the start of the text."""
        if last is None:
            return self._first
        if before_last is None:
            return last
        return self._row_of_pair.get((before_last, last), last)


def _smooth(counts: NDArray[np.float64], tokenizer: Tokenizer) -> NDArray[np.float64]:
    plain = np.arange(len(counts)) < tokenizer.plain_size
    floor = np.where(plain, _FLOOR / tokenizer.plain_size, _SPECIAL_FLOOR)
    smoothed: NDArray[np.float64] = (counts / counts.sum()) * (1.0 - floor.sum()) + floor
    return smoothed


@cache
def load_ngrams() -> NGrams:
    """Return the n-grams of the corpus. They are the same for all seeds and versions."""
    return NGrams(load_tokenizer(), corpus())

"""A language model in float64: n-grams of the corpus, a recurrent net, and a prior over the form of a reply.

The next token's distribution depends on the weights and on all tokens before it. Weights are a pure function of
``(seed, version)``. A slow part of the hidden state keeps an influence of tokens that are thousands of positions back.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from farm.model_server.errors import RequestError
from farm.model_server.priors.ngrams import load_ngrams
from farm.model_server.priors.reply_prior import LEAK, MAX_EXPERTS, Expert, load_prior
from farm.model_server.tokenizer import load_tokenizer

UNITS = 64
BLOCK = 64
"""The number of tokens after which a hidden state is kept in the prefix cache."""

_SLOWEST = 1e-3
"""The rate of the slowest hidden unit: half of a token's influence is left 700 positions later."""

_RECURRENT_SCALE = 0.9
_INPUT_SCALE = 0.6
_READOUT_SCALE = 0.15
_GATE_SCALE = 0.15
_MODELS_CACHED = 8
_TOKEN_BYTES = "<i4"

Vector = NDArray[np.float64]


class PrefixCache:
    """The hidden states after whole blocks of tokens, least recently used evicted first."""

    def __init__(self, blocks: int = 4096) -> None:
        self._blocks = blocks
        self._hidden: OrderedDict[bytes, Vector] = OrderedDict()

    def find(self, ids: Sequence[int]) -> tuple[int, bytes, Vector | None]:
        """Return the length of the longest cached prefix, its key, and a copy of its hidden state."""
        key, length, hidden = b"", 0, None
        while length + BLOCK <= len(ids):
            longer = block_key(key, ids[length : length + BLOCK])
            found = self._hidden.get(longer)
            if found is None:
                break
            self._hidden.move_to_end(longer)
            key, length, hidden = longer, length + BLOCK, found
        return length, key, None if hidden is None else hidden.copy()

    def keep(self, key: bytes, hidden: Vector) -> None:
        self._hidden[key] = hidden.copy()
        self._hidden.move_to_end(key)
        if len(self._hidden) > self._blocks:
            self._hidden.popitem(last=False)


def block_key(before: bytes, block: Sequence[int]) -> bytes:
    """Return the key of a prefix: a digest of its last block and of the key of the prefix before."""
    return blake2b(before + np.asarray(block, dtype=_TOKEN_BYTES).tobytes(), digest_size=16).digest()


class State:
    """One context of a model. ``ids`` are its tokens, of which ``fed`` are in the hidden state.

    ``cached`` is the number of tokens that came from the prefix cache. The log-probabilities are those after all
    tokens, so ``prefill`` has to feed them first.
    """

    def __init__(self, model: "LanguageModel", ids: Sequence[int], cache: PrefixCache | None = None) -> None:
        self.ids = list(ids)
        self.position = model.prior.locate(self.ids)
        self._model = model
        self._cache = cache
        self.fed, self._key, hidden = cache.find(self.ids) if cache else (0, b"", None)
        self.hidden = np.zeros(UNITS) if hidden is None else hidden
        self.cached = self.fed

    @property
    def missing(self) -> int:
        """Return the number of tokens that are not yet fed."""
        return len(self.ids) - self.fed

    def prefill(self, limit: int | None = None) -> int:
        """Feed the next tokens, at most ``limit``. Return their number."""
        end = len(self.ids) if limit is None else min(len(self.ids), self.fed + limit)
        start = self.fed
        while self.fed < end:
            stop = min(end, self.fed - self.fed % BLOCK + BLOCK)
            self._model.feed(self.hidden, self.ids[self.fed : stop])
            self.fed = stop
            self._keep_block()
        return end - start

    def logprobs(self) -> Vector:
        """Return float64[vocabulary]: the log-probability of each token as the next one."""
        row: Vector = self._model.logprobs([self])[0]
        return row

    def push(self, token: int) -> None:
        """Append one token."""
        self.append(token)
        self.prefill()

    def append(self, token: int) -> None:
        """Append one token that the caller feeds to the hidden state."""
        self.ids.append(token)
        self.position = self._model.prior.push(self.position, self.ids, len(self.ids) - 1)

    def take(self, hidden: Vector) -> None:
        """Set the hidden state after the last appended token."""
        self.hidden[:] = hidden
        self.fed += 1
        self._keep_block()

    def _keep_block(self) -> None:
        if self._cache is not None and self.fed and self.fed % BLOCK == 0:
            self._key = block_key(self._key, self.ids[self.fed - BLOCK : self.fed])
            self._cache.keep(self._key, self.hidden)


class LanguageModel:
    """The model of one seed and version."""

    def __init__(self, seed: int, version: int) -> None:
        self.seed = seed
        self.version = version
        self.tokenizer = load_tokenizer()
        self.prior = load_prior()
        self._ngrams = load_ngrams()
        random = np.random.default_rng([seed, version])
        size = self.tokenizer.size
        self._recurrent = random.normal(0.0, _RECURRENT_SCALE / np.sqrt(UNITS), (UNITS, UNITS))
        self._inputs = random.normal(0.0, _INPUT_SCALE, (size, UNITS))
        self._readout = random.normal(0.0, _READOUT_SCALE, (UNITS, size))
        self._gates = random.normal(0.0, _GATE_SCALE, (UNITS, MAX_EXPERTS))
        self._rates = np.geomspace(1.0, _SLOWEST, UNITS)

    def start(self, ids: Sequence[int], cache: PrefixCache | None = None) -> State:
        """Return the state after token ids. Raises RequestError for an id outside the vocabulary."""
        check_ids(ids, self.tokenizer.size)
        state = State(self, ids, cache)
        state.prefill()
        return state

    def feed(self, hidden: Vector, ids: Sequence[int]) -> None:
        """Update a hidden state in place with tokens, one after the other."""
        recurrent, rates, change = self._recurrent, self._rates, np.empty(UNITS)
        for row in self._inputs[ids]:
            np.dot(hidden, recurrent, change)
            change += row
            np.tanh(change, change)
            change -= hidden
            change *= rates
            hidden += change

    def advance(self, states: Sequence[State], tokens: Sequence[int]) -> None:
        """Append one token to each of several states, in one batch."""
        hidden = np.stack([state.hidden for state in states])
        change = np.tanh(hidden @ self._recurrent + self._inputs[tokens])
        hidden += (change - hidden) * self._rates
        for state, token, row in zip(states, tokens, hidden, strict=True):
            state.append(token)
            state.take(row)

    def logprobs(self, states: Sequence[State]) -> Vector:
        """Return float64[states, vocabulary]: log-probabilities of the next token of each state."""
        hidden = np.stack([state.hidden for state in states])
        rows = [self._row(state.ids) for state in states]
        return self._distribution(hidden, rows, [self.prior.experts(state.position) for state in states])

    def logprobs_of(self, prompt_ids: Sequence[int], reply_ids: Sequence[int]) -> Vector:
        """Return float64[reply]: the log-probability of each reply token after all tokens before it, by a fresh pass.

        Raises RequestError for an id outside the vocabulary.
        """
        check_ids(reply_ids, self.tokenizer.size)
        state = self.start(prompt_ids)
        hidden, rows, experts = [], [], []
        for token in reply_ids:
            hidden.append(state.hidden.copy())
            rows.append(self._row(state.ids))
            experts.append(self.prior.experts(state.position))
            state.push(token)
        if not reply_ids:
            return np.zeros(0)
        every = self._distribution(np.stack(hidden), rows, experts)
        return every[np.arange(len(reply_ids)), list(reply_ids)]

    def _row(self, ids: Sequence[int]) -> int:
        last = ids[-1] if ids else None
        return self._ngrams.row(ids[-2] if len(ids) > 1 else None, last)

    def _distribution(self, hidden: Vector, rows: Sequence[int], experts: Sequence[tuple[Expert, ...]]) -> Vector:
        scores = hidden @ self._readout
        scores += self._ngrams.table[rows]
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, scores)
        scores /= scores.sum(axis=1, keepdims=True)
        gates = np.exp(hidden @ self._gates)
        for row, gate, parts in zip(scores, gates, experts, strict=True):
            if parts:
                _mix(row, gate, parts)
        return np.log(scores, scores)


def _mix(row: Vector, gate: Vector, parts: Sequence[Expert]) -> None:
    """Replace a distribution by ``LEAK`` of itself and the mixture of its experts, whose weights ``gate`` scales."""
    limited = [row[part.ids] ** part.power * part.scale for part in parts]
    weights = [part.weight * factor for part, factor in zip(parts, gate, strict=False)]
    factor = (1.0 - LEAK) / sum(weights)
    row *= LEAK
    for part, weight, share in zip(parts, weights, limited, strict=True):
        row[part.ids] += share * (factor * weight / share.sum())


def check_ids(ids: Sequence[int], size: int) -> None:
    """Raise RequestError if a token id is outside the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= size):
        wrong = next(token for token in ids if not 0 <= token < size)
        raise RequestError(f"token id {wrong} is out of vocabulary; ids go from 0 to {size - 1}")


@lru_cache(maxsize=_MODELS_CACHED)
def load_model(seed: int, version: int) -> LanguageModel:
    """Return the model of a seed and version, made once for recent ones."""
    return LanguageModel(seed, version)

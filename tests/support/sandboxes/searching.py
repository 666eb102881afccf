"""Embedders as a plug-in brings them, for tests."""

import os
from collections.abc import Sequence

import numpy as np

from sandboxes.search.embeddings.minilm import UNKNOWN
from sandboxes.search.embeddings.word_table import Embedder, Floats, Passage, WordEmbedder, WordTable

MEANINGS = {
    UNKNOWN: (0.0, 0.0, 0.0),
    "remove": (1.0, 0.0, 0.0),
    "delete": (0.9, 0.1, 0.0),
    "cookie": (0.0, 1.0, 0.0),
    "url": (0.0, 0.0, 1.0),
    "address": (0.0, 0.2, 0.9),
    "goods": (0.2, 0.2, 0.0),
    "join": (0.0, 0.0, 0.3),
    "add": (0.0, 0.1, 0.0),
}


def toy() -> WordEmbedder:
    """Knows a handful of words."""
    vectors = np.array(list(MEANINGS.values()), np.float32)
    return WordEmbedder("toy", WordTable.of_floats(vectors, {piece: n for n, piece in enumerate(MEANINGS)}))


class Fatal:
    """Ends its process where a definition is called ``poison``: one that was parsed has its name counted."""

    name = "fatal"

    def embed(self, passages: Sequence[Passage]) -> Floats:
        if any(passage.words.get("poison", 0) > 1 for passage in passages):
            os._exit(1)
        return np.zeros((len(passages), 0), np.float32)


def fatal() -> Embedder:
    return Fatal()


class Stubborn:
    """Ends its process whatever it is given."""

    name = "stubborn"

    def embed(self, passages: Sequence[Passage]) -> Floats:
        os._exit(1)


def stubborn() -> Embedder:
    return Stubborn()


class Endless:
    """Never comes to an end with a definition that is called ``endless``."""

    name = "endless"

    def embed(self, passages: Sequence[Passage]) -> Floats:
        while any(passage.words.get("endless", 0) > 1 for passage in passages):
            pass
        return np.zeros((len(passages), 0), np.float32)


def endless() -> Embedder:
    return Endless()

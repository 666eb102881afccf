"""Which embedder is in use: the farm's own, none, or any that is named."""

import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable
from sandboxes.search.embeddings.word_table import Embedder, WordEmbedder, WordTable

WORDS, NONE = "words", "none"
NAME = "minilm-words-1"
REMEDY = "make it once with: python -m sandboxes.search.embeddings.distill"

log = logging.getLogger(__name__)


def default_table() -> Path:
    """Beside what else this Python has installed: made when the machine is set up, the same for every farm on it."""
    return Path(sys.prefix) / "share" / "farm" / NAME


def load_embedder(chosen: str) -> Embedder | None:
    """``words``: the farm's own, where its table was made. ``none``: questions are answered by words they share alone.
    ``package.module:factory``: whatever the factory makes. Raises RuntimeUnavailable."""
    if chosen == NONE:
        return None
    if chosen == WORDS:
        try:
            return WordEmbedder(NAME, WordTable.read(default_table()))
        except (OSError, ValueError) as error:
            log.warning("codebase_search goes by words alone, for it lacks its table (%s); %s", error, REMEDY)
            return None
    module, _, name = chosen.partition(":")
    try:
        factory: Callable[[], Embedder] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise RuntimeUnavailable(f"no embedder {chosen!r}: name {WORDS}, {NONE} or package.module:factory") from None
    return factory()

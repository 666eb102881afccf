"""Select the embedder: the farm's own, none, or a named factory."""

import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable
from sandboxes.search.embeddings.word_table import Embedder, WordEmbedder, WordTable

WORDS, NONE = "words", "none"
NAME = "minilm-words-1"
REMEDY = "build it once with: python -m sandboxes.search.embeddings.distill"

log = logging.getLogger(__name__)


def default_table() -> Path:
    """Return the path of the table in this Python's prefix: built at set-up, shared by all farms of the
    installation.
    """
    return Path(sys.prefix) / "share" / "farm" / NAME


def load_embedder(chosen: str) -> Embedder | None:
    """Load the chosen embedder. Raises RuntimeUnavailable if it does not exist or cannot be loaded.

    ``words``: the farm's own, if its table exists. ``none``: search uses shared words only. ``package.module:factory``:
    the object that the factory returns.
    """
    if chosen == NONE:
        return None
    if chosen == WORDS:
        try:
            return WordEmbedder(NAME, WordTable.read(default_table()))
        except (OSError, ValueError) as error:
            log.warning(
                "codebase_search uses shared words only, because its word table cannot be read (%s); %s", error, REMEDY
            )
            return None
    module, _, name = chosen.partition(":")
    try:
        factory: Callable[[], Embedder] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RuntimeUnavailable(
            f"there is no embedder {chosen!r} ({error}); use {WORDS}, {NONE} or package.module:factory"
        ) from None
    try:
        return factory()
    except Exception as error:  # a boundary: the factory is not the farm's
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise RuntimeUnavailable(
            f"the embedder {chosen!r} cannot be loaded ({cause}); correct it, or use {WORDS} or {NONE}"
        ) from error

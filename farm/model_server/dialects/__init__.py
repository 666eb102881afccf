"""The dialects of the model server: plain OpenAI, vLLM and SGLang.

This room decides which fields and routes each kind of engine has. Enter at ``make_dialect`` and ``base.Dialect``; each
dialect is one file. The page is farm/docs/architecture/model-server.md.
"""

from farm.model_server.dialects.base import Chunk, Dialect, Wanted, spans
from farm.model_server.dialects.openai import OpenAIDialect
from farm.model_server.dialects.sglang import SGLangDialect
from farm.model_server.dialects.vllm import VLLMDialect

__all__ = ["DIALECTS", "Chunk", "Dialect", "Wanted", "make_dialect", "spans"]

DIALECTS = ("vllm", "sglang", "openai")


def make_dialect(name: str) -> Dialect:
    """Return a dialect by its name. Raises ValueError for another name."""
    match name:
        case "vllm":
            return VLLMDialect()
        case "sglang":
            return SGLangDialect()
        case "openai":
            return OpenAIDialect()
        case _:
            raise ValueError(f"no dialect {name!r}; there are {', '.join(DIALECTS)}")

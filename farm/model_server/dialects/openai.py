"""Plain OpenAI: no token ids, no weight versions, and a refusal of every field that OpenAI does not name."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter

from farm.model_server.dialects.base import Chunk, Wanted
from farm.model_server.exchange import Exchange
from farm.model_server.generation import Generation

_FIELDS = frozenset(
    {
        "echo",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "model",
        "n",
        "parallel_tool_calls",
        "presence_penalty",
        "prompt",
        "reasoning_effort",
        "response_format",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
    }
)


class OpenAIDialect:
    reasoning_field = "reasoning_content"

    def unknown_fields(self, fields: Sequence[str]) -> Sequence[str]:
        return sorted(set(fields) - _FIELDS)

    def error(self, status: int, message: str, field: str | None) -> dict[str, Any]:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": kind, "param": field, "code": None}}

    def add_to_answer(self, answer: dict[str, Any], generation: Generation, wanted: Wanted) -> None:
        return None

    def add_to_chunk(self, answer: dict[str, Any], generation: Generation, wanted: Wanted, chunk: Chunk) -> None:
        return None

    def router(self, exchange: Exchange) -> APIRouter:
        return APIRouter()

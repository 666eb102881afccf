"""vLLM: ``token_ids`` and ``weight_versions`` of a choice, and the routes of its development mode for training.

A weight version names weights here. So ``/update_weight_version``, which only sets a label in vLLM, loads them too.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from farm.model_server.dialects.base import Chunk, Wanted, spans
from farm.model_server.dialects.tokenizer_routes import add_tokenizer_routes
from farm.model_server.engine import Mode
from farm.model_server.exchange import Exchange
from farm.model_server.generation import Generation
from farm.model_server.requests import parse_body, version_number

_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}


class _NewVersion(BaseModel):
    new_version: int | str


class _AbortRequests(BaseModel):
    request_ids: list[str] | None = None


class VLLMDialect:
    reasoning_field = "reasoning"

    def unknown_fields(self, fields: Sequence[str]) -> Sequence[str]:
        return ()

    def error(self, status: int, message: str, field: str | None) -> dict[str, Any]:
        kind = _KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
        return {"error": {"message": message, "type": kind, "param": field, "code": status}}

    def add_to_answer(self, answer: dict[str, Any], generation: Generation, wanted: Wanted) -> None:
        (choice,) = answer["choices"]
        is_given = isinstance(generation.matched, str) or generation.matched in generation.params.stop_token_ids
        choice["stop_reason"] = generation.matched if is_given else None
        if wanted.token_ids:
            choice["token_ids"] = generation.tokens
            _prompt_holder(answer)["prompt_token_ids"] = generation.prompt_ids
        if wanted.weight_versions:
            choice["weight_versions"] = spans(generation)

    def add_to_chunk(self, answer: dict[str, Any], generation: Generation, wanted: Wanted, chunk: Chunk) -> None:
        (choice,) = answer["choices"]
        if wanted.token_ids:
            choice["token_ids"] = list(chunk.tokens)
            if chunk.is_first:
                _prompt_holder(answer)["prompt_token_ids"] = generation.prompt_ids
        if wanted.weight_versions and chunk.is_last:
            choice["weight_versions"] = spans(generation)

    def router(self, exchange: Exchange) -> APIRouter:
        router, engine = APIRouter(), exchange.engine
        add_tokenizer_routes(router, exchange, "prompt")

        @router.post("/pause")
        async def pause(mode: Annotated[Mode, Query()] = "abort", clear_cache: bool = True) -> dict[str, str]:
            await engine.pause(mode)
            if clear_cache:
                engine.clear_cache()
            return {"status": "paused"}

        @router.post("/resume")
        async def resume() -> dict[str, str]:
            engine.resume()
            return {"status": "resumed"}

        @router.get("/is_paused")
        async def is_paused() -> dict[str, bool]:
            return {"is_paused": engine.is_paused}

        @router.post("/abort_requests")
        async def abort_requests(request: Request) -> dict[str, str]:
            names = parse_body(_AbortRequests, await request.body()).request_ids
            if names:
                for name in names:
                    engine.abort_id(name)
            else:
                engine.abort_all()
            return {"status": "aborted"}

        @router.post("/update_weight_version")
        async def update_weight_version(request: Request) -> dict[str, str]:
            label = parse_body(_NewVersion, await request.body()).new_version
            await engine.set_version(version_number(label), "keep")
            return {"weight_version": str(engine.version)}

        @router.get("/weight_info")
        async def weight_info() -> dict[str, str]:
            return {"weight_version": str(engine.version)}

        return router


def _prompt_holder(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the object that holds the prompt's ids: the answer of a chat, the choice of a text completion."""
    if answer["object"] == "text_completion":
        choice: dict[str, Any] = answer["choices"][0]
        return choice
    return answer

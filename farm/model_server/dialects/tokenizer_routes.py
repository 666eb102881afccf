"""The tokenizer over HTTP: ``/tokenize`` and ``/detokenize``, which vLLM and SGLang have under the same names."""

from typing import Any, Literal

from fastapi import APIRouter, Request

from farm.model_server.exchange import Exchange
from farm.model_server.model import check_ids
from farm.model_server.requests import DetokenizeRequest, TokenizeRequest, parse_body
from farm.model_server.tokenizer import CONTROL, MARKUP


def add_tokenizer_routes(router: APIRouter, exchange: Exchange, text_field: Literal["prompt", "text"]) -> None:
    """Add the routes. ``text_field`` is the field of the text in an answer of ``/detokenize``."""
    tokenizer = exchange.engine.model.tokenizer

    @router.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        body = parse_body(TokenizeRequest, await request.body())
        ids = tokenizer.encode(body.prompt, (*CONTROL, *MARKUP))
        return {"tokens": ids, "count": len(ids), "max_model_len": exchange.engine.config.max_model_len}

    @router.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        body = parse_body(DetokenizeRequest, await request.body())
        check_ids(body.tokens, tokenizer.size)
        return {text_field: tokenizer.decode(body.tokens, skip_control=body.skip_special_tokens)}

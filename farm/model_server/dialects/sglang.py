"""SGLang: ``response_token_ids`` of a choice, ``metadata`` with weight versions, ``/generate``, and control routes.

A weight version names weights here. So ``/update_weight_version``, which only sets a label in SGLang, loads them too.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from farm.model_server.dialects.base import Chunk, Wanted, spans
from farm.model_server.dialects.tokenizer_routes import add_tokenizer_routes
from farm.model_server.engine import Mode
from farm.model_server.errors import RequestError
from farm.model_server.exchange import DONE, Exchange, event
from farm.model_server.generation import ABORT, Disturbance, Generation, reply_text
from farm.model_server.requests import parse_body, version_number
from farm.model_server.sampling import SamplingParams
from farm.model_server.tokenizer import CONTROL, MARKUP

_DEFAULT_NEW_TOKENS = 128
_PAUSES: dict[str, Mode] = {"abort": "abort", "retract": "keep", "in_place": "keep"}


class _SamplingFields(BaseModel):
    model_config = ConfigDict(extra="allow")

    max_new_tokens: Annotated[int, Field(ge=1)] | None = _DEFAULT_NEW_TOKENS
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_new_tokens: int = 0
    ignore_eos: bool = False
    sampling_seed: int | None = None

    def params(self, room: int) -> SamplingParams:
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return SamplingParams(
            max_tokens=self.max_new_tokens or room,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            seed=self.sampling_seed,
            stop=tuple(stop),
            stop_token_ids=frozenset(self.stop_token_ids or ()),
            min_tokens=self.min_new_tokens,
            ignore_eos=self.ignore_eos,
        )


class _GenerateRequest(BaseModel):
    model_config = ConfigDict(extra="allow")

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: _SamplingFields = _SamplingFields()
    return_logprob: bool = False
    stream: bool = False
    rid: str | None = None


class _AbortRequest(BaseModel):
    rid: str = ""
    abort_all: bool = False


class _Pause(BaseModel):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class _NewVersion(BaseModel):
    new_version: int | str
    abort_all_requests: bool = True


class _FromDisk(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model_path: str = ""
    weight_version: int | str
    abort_all_requests: bool = False


class SGLangDialect:
    reasoning_field = "reasoning_content"

    def unknown_fields(self, fields: Sequence[str]) -> Sequence[str]:
        return ()

    def error(self, status: int, message: str, field: str | None) -> dict[str, Any]:
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        return {"object": "error", "message": message, "type": kind, "param": field, "code": status}

    def add_to_answer(self, answer: dict[str, Any], generation: Generation, wanted: Wanted) -> None:
        (choice,) = answer["choices"]
        choice["matched_stop"] = generation.matched
        if wanted.token_ids:
            choice["prompt_token_ids"] = generation.prompt_ids
            choice["response_token_ids"] = generation.tokens
        if wanted.meta_info:
            choice["meta_info"] = meta_info(generation, with_logprobs=wanted.logprobs)
        answer["metadata"] = {"weight_version": str(generation.version)}
        if wanted.weight_versions or wanted.token_ids:
            answer["metadata"]["weight_versions"] = spans(generation)

    def add_to_chunk(self, answer: dict[str, Any], generation: Generation, wanted: Wanted, chunk: Chunk) -> None:
        if chunk.is_last:
            self.add_to_answer(answer, generation, wanted)

    def router(self, exchange: Exchange) -> APIRouter:
        router = APIRouter()
        _add_generate(router, exchange)
        add_tokenizer_routes(router, exchange, "text")
        _add_control(router, exchange)
        _add_weights(router, exchange)
        return router


def meta_info(generation: Generation, *, with_logprobs: bool) -> dict[str, Any]:
    """Return what SGLang tells about a reply beside its text."""
    meta: dict[str, Any] = {
        "id": generation.id,
        "finish_reason": _finish_reason(generation),
        "prompt_tokens": len(generation.prompt_ids),
        "completion_tokens": len(generation.tokens),
        "cached_tokens": generation.cached_tokens,
        "weight_version": str(generation.version),
        "weight_versions": spans(generation),
    }
    if with_logprobs:
        scored = zip(generation.logprobs, generation.tokens, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in scored]
    return meta


def _finish_reason(generation: Generation) -> dict[str, Any] | None:
    match generation.finish_reason:
        case "stop":
            return {"type": "stop", "matched": generation.matched}
        case "length":
            return {"type": "length", "length": len(generation.tokens)}
        case reason if reason == ABORT:
            return {"type": "abort", "message": "the request was aborted"}
        case _:
            return None


def _add_generate(router: APIRouter, exchange: Exchange) -> None:
    tokenizer = exchange.engine.model.tokenizer

    @router.post("/generate")
    async def generate(request: Request) -> Response:
        body = parse_body(_GenerateRequest, await request.body())
        if (body.text is None) == (body.input_ids is None):
            raise RequestError("either text or input_ids is required, not both", "input_ids")
        ids = body.input_ids if body.text is None else tokenizer.encode(body.text, (*CONTROL, *MARKUP))
        prompt_ids = ids or []
        params = body.sampling_params.params(exchange.engine.room(len(prompt_ids)))

        def start(disturbance: Disturbance) -> Generation:
            return exchange.engine.submit(prompt_ids, params, request_id=body.rid or "", disturbance=disturbance)

        def whole(generation: Generation) -> dict[str, Any]:
            return {
                "text": reply_text(generation, tokenizer),
                "output_ids": list(generation.tokens),
                "meta_info": meta_info(generation, with_logprobs=body.return_logprob),
            }

        async def stream(generation: Generation) -> AsyncIterator[bytes]:
            async for _ in generation.updates():
                yield event(whole(generation))
            yield DONE

        return await exchange.answer(request, start, whole, stream if body.stream else None)


def _add_control(router: APIRouter, exchange: Exchange) -> None:
    engine = exchange.engine

    @router.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body = parse_body(_AbortRequest, await request.body())
        if body.abort_all:
            engine.abort_all()
        else:
            engine.abort_id(body.rid)
        return Response()

    @router.post("/pause_generation")
    async def pause_generation(request: Request) -> dict[str, str]:
        await engine.pause(_PAUSES[parse_body(_Pause, await request.body()).mode])
        return {"message": "Generation paused successfully.", "status": "ok"}

    @router.post("/continue_generation")
    async def continue_generation() -> dict[str, str]:
        engine.resume()
        return {"message": "Generation continued successfully.", "status": "ok"}

    @router.get("/health_generate")
    async def health_generate() -> Response:
        return Response()

    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> dict[str, Any]:
        return {"model_path": exchange.model, "is_generation": True, "weight_version": str(engine.version)}


def _add_weights(router: APIRouter, exchange: Exchange) -> None:
    engine = exchange.engine

    @router.post("/update_weight_version")
    async def update_weight_version(request: Request) -> dict[str, Any]:
        body = parse_body(_NewVersion, await request.body())
        await engine.set_version(version_number(body.new_version), "abort" if body.abort_all_requests else "keep")
        label = str(body.new_version)
        return {"success": True, "message": f"Weight version updated to {label}", "new_version": label}

    @router.post("/update_weights_from_disk")
    async def update_weights_from_disk(request: Request) -> dict[str, Any]:
        body = parse_body(_FromDisk, await request.body())
        mode: Mode = "abort" if body.abort_all_requests else "keep" if engine.is_paused else "wait"
        await engine.set_version(version_number(body.weight_version), mode)
        return {"success": True, "message": f"Succeeded to load version {engine.version}.", "num_paused_requests": 0}

    @router.post("/flush_cache")
    async def flush_cache() -> dict[str, bool]:
        engine.clear_cache()
        return {"success": True}

"""An inference endpoint that plays a script: a real peer over HTTP for the tests of the policy and the episode.

It renders every message to bytes and takes each byte for a token, as a chat template and a tokenizer would: a history
that is handed back as it was said gives the same tokens again.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

Call = tuple[str, Mapping[str, Any] | str]
"""A tool's name and its arguments; a string goes out as it is, JSON or not."""


@dataclass(frozen=True)
class Say:
    """One reply of the model."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    finish_reason: str | None = None
    version: int = 1


Script = list[Say | Response | Callable[[Mapping[str, Any]], Awaitable[Any]]]


@dataclass
class ModelServer:
    """``dialect`` is ``vllm``, ``sglang`` or ``openai``; what it does not know, ``openai`` refuses.

    ``models`` are the first answers to the question which models are served.
    """

    script: Script
    dialect: str = "vllm"
    forgets_reasoning: bool = False
    url: str = ""
    models: list[Response] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/v1/models")(self._models)
        app.post("/v1/chat/completions")(self._chat)
        return app

    async def _models(self) -> Any:
        return self.models.pop(0) if self.models else {"data": [{"id": "tiny"}]}

    async def _chat(self, request: Request) -> Any:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        self.asked.set()
        unknown = {key for key in body if key.startswith("return_")}
        if self.dialect == "openai" and unknown:
            return refusal(400, f"Unrecognized request arguments supplied: {', '.join(sorted(unknown))}")
        step = self.script.pop(0) if self.script else Say("I am done.")
        if isinstance(step, Response):
            return step
        said = step if isinstance(step, Say) else await step(body)
        return self._answer(body, said) if isinstance(said, Say) else said

    def _answer(self, body: Mapping[str, Any], say: Say) -> dict[str, Any]:
        number = len(self.requests)
        calls = [
            {
                "id": f"call-{number}-{index}",
                "type": "function",
                "function": {"name": name, "arguments": given if isinstance(given, str) else json.dumps(given)},
            }
            for index, (name, given) in enumerate(say.calls)
        ]
        message = {"role": "assistant", "content": say.content, "tool_calls": calls}
        if say.reasoning is not None:
            message["reasoning_content"] = say.reasoning
        prompt = [token for past in body["messages"] for token in self.tokens(past)] + list(b"<assistant>")
        sampled = self.tokens(message, forget=False)[len(b"<assistant>") :]
        choice: dict[str, Any] = {"message": message, "finish_reason": say.finish_reason or "stop"}
        answer: dict[str, Any] = {"id": f"request-{number}", "choices": [choice]}
        answer["usage"] = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled)}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"token": "?", "logprob": logprob(token)} for token in sampled]}
        span = {"version": f"step-{say.version}", "start": 0, "end": len(sampled)}
        if self.dialect == "vllm" and body.get("return_token_ids"):
            answer["prompt_token_ids"] = prompt
            choice |= {"token_ids": sampled, "weight_versions": [span]}
        if self.dialect == "sglang" and body.get("return_token_ids"):
            choice |= {"prompt_token_ids": prompt, "response_token_ids": sampled}
            answer["metadata"] = {"weight_version": span["version"], "weight_versions": [span]}
        return answer

    def tokens(self, message: Mapping[str, Any], *, forget: bool | None = None) -> list[int]:
        """One message through the chat template."""
        said = [str(message.get("content", ""))]
        if not (self.forgets_reasoning if forget is None else forget):
            said.append(str(message.get("reasoning_content", "")))
        said += [
            f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", ())
        ]
        return list(f"<{message['role']}>{'|'.join(said)}<end>".encode())


def logprob(token: int) -> float:
    """What the server gives a token: a value that float32 holds exactly."""
    return -token / 256


def refusal(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error answer in OpenAI's form."""
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error"}})
    return Response(body, status, media_type="application/json", headers=headers)


@asynccontextmanager
async def serving(model: ModelServer) -> AsyncIterator[ModelServer]:
    """``model`` behind a free port of the loopback; connections queue from the first moment on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        model.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        config = uvicorn.Config(model.app(), log_level="error", lifespan="off")
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        try:
            yield model
        finally:
            for listening in server.servers:
                listening.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()

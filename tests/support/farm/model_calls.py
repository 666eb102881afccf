"""Requests to a served model, and their streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from farm.core.rollout import Segment
from farm.model_server import EngineConfig, count_mismatches, recompute_logprobs
from farm.model_server.generation import Span
from tests.support.farm.served_model import ServedModel, serving

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
MESSAGES = [{"role": "user", "content": "Fix the tests in tests/test_main.py."}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 300}
LONG: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 200, "ignore_eos": True, "seed": 1}
ALL_FIELDS = {"logprobs": True, "return_token_ids": True, "return_weight_versions": True, "return_meta_info": True}
CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@asynccontextmanager
async def served(
    dialect: str = "vllm", config: EngineConfig | None = None, *, api_key: str | None = None
) -> AsyncIterator[tuple[ServedModel, httpx.AsyncClient]]:
    """Serve a model and yield it with a client."""
    async with (
        serving(dialect, config, api_key=api_key) as model,
        httpx.AsyncClient(base_url=model.url, timeout=60, trust_env=False) as client,
    ):
        yield model, client


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition of the engine in this event loop."""
    while not condition():  # noqa: ASYNC110 - the engine's counters have no event
        await asyncio.sleep(0)


async def post(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    """Return the document of a request that succeeds."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the documents of a stream that ends as it should."""
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def one_with_calls(client: httpx.AsyncClient, **more: Any) -> tuple[dict[str, Any], Any]:
    """Return the first request of several seeds whose reply has reasoning, content and a call, and its answer."""
    for seed in range(60):
        body = {**CHAT, **more, "seed": seed}
        answer = await post(client, CHATS, body)
        message = answer["choices"][0]["message"]
        if message.get("tool_calls") and message["content"] and ({"reasoning", "reasoning_content"} & message.keys()):
            return body, answer
    raise AssertionError("no reply has all parts")


def segment_mismatches(segment: Segment) -> int:
    """Return the number of sampled tokens whose log-probability a fresh pass does not give."""
    wrong = 0
    ids = segment.token_ids.tolist()
    for span in segment.weight_versions:
        sampled = range(span.start, span.end)
        fresh = recompute_logprobs(
            0, ids[: span.start], ids[span.start : span.end], [Span(span.version, 0, len(sampled))]
        )
        mask = segment.loss_mask[span.start : span.end]
        reported = segment.logprobs.tolist()[span.start : span.end]
        pairs = [pair for pair, is_sampled in zip(zip(reported, fresh, strict=True), mask, strict=True) if is_sampled]
        wrong += count_mismatches([pair[0] for pair in pairs], [pair[1] for pair in pairs])
    return wrong

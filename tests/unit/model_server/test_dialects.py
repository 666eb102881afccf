"""The dialects: token ids, weight versions and control routes in the form of each engine."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.farm.model_calls import ALL_FIELDS, CHAT, CHATS, COMPLETIONS, LONG, post, served, stream, until
from tests.support.farm.served_model import ServedModel


async def running(model: ServedModel, client: httpx.AsyncClient, path: str, body: Any) -> "asyncio.Task[Any]":
    """Start a request. Return it when it has some tokens."""
    before = model.engine.metrics.generated_tokens
    request = asyncio.create_task(post(client, path, body))
    await until(lambda: model.engine.metrics.generated_tokens >= before + 10)
    return request


async def test_vllm_sends_ids_only_on_request() -> None:
    async with served("vllm") as (_, client):
        plain = await post(client, CHATS, CHAT)
        assert "prompt_token_ids" not in plain
        assert {"token_ids", "weight_versions"}.isdisjoint(plain["choices"][0])
        full = await post(client, CHATS, {**CHAT, **ALL_FIELDS})
        (choice,) = full["choices"]
        number = len(choice["token_ids"])
        assert number == full["usage"]["completion_tokens"] == len(choice["logprobs"]["content"])
        assert len(full["prompt_token_ids"]) == full["usage"]["prompt_tokens"]
        assert choice["weight_versions"] == [{"version": "1", "start": 0, "end": number}]


async def test_vllm_streams_ids_and_versions() -> None:
    async with served("vllm") as (_, client):
        whole = await post(client, CHATS, {**LONG, **ALL_FIELDS})
        parts = await stream(client, CHATS, {**LONG, **ALL_FIELDS})
        choices = [part["choices"][0] for part in parts]
        assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert [token for choice in choices for token in choice["token_ids"]] == whole["choices"][0]["token_ids"]
        assert [choice.get("weight_versions") for choice in choices if "weight_versions" in choice] == [
            [{"version": "1", "start": 0, "end": 200}]
        ]


async def test_vllm_pause_keeps_running_requests() -> None:
    async with served("vllm") as (model, client):
        request = await running(model, client, CHATS, {**LONG, **ALL_FIELDS})
        assert (await client.post("/pause", params={"mode": "keep"})).status_code == 200
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        refused = await client.post("/update_weights", json={"version": 3, "mode": "wait"})
        assert refused.status_code == 409
        assert "resume the engine" in refused.json()["error"]["message"]
        assert await post(client, "/update_weight_version", {"new_version": "v3"}) == {"weight_version": "3"}
        assert (await client.get("/weight_info")).json() == {"weight_version": "3"}
        assert (await client.post("/resume")).status_code == 200
        spans = (await request)["choices"][0]["weight_versions"]
        assert [span["version"] for span in spans] == ["1", "3"]
        assert (await client.get("/is_paused")).json() == {"is_paused": False}


async def test_vllm_aborts_return_partial_replies() -> None:
    async with served("vllm") as (model, client):
        request = await running(model, client, COMPLETIONS, {"prompt": "a", "max_tokens": 9000, "ignore_eos": True})
        await post(client, "/pause", None)
        assert (await request)["choices"][0]["finish_reason"] == "abort"
        await post(client, "/resume", None)
        named = {**LONG, "max_tokens": 9000, "request_id": "mine"}
        request = await running(model, client, CHATS, named)
        await post(client, "/abort_requests", {"request_ids": ["other"]})
        assert model.engine.running == 1
        await post(client, "/abort_requests", {"request_ids": ["mine"]})
        assert (await request)["choices"][0]["finish_reason"] == "abort"


async def test_sglang_chat_has_response_token_ids() -> None:
    async with served("sglang") as (_, client):
        plain = await post(client, CHATS, CHAT)
        assert plain["metadata"] == {"weight_version": "1"}
        full = await post(client, CHATS, {**CHAT, **ALL_FIELDS})
        (choice,) = full["choices"]
        ids = choice["response_token_ids"]
        assert len(choice["prompt_token_ids"]) == full["usage"]["prompt_tokens"]
        assert full["metadata"]["weight_versions"] == [{"version": "1", "start": 0, "end": len(ids)}]
        scored = choice["meta_info"]["output_token_logprobs"]
        assert [token for _, token, _ in scored] == ids
        assert [value for value, _, _ in scored] == [item["logprob"] for item in choice["logprobs"]["content"]]
        last = (await stream(client, CHATS, {**LONG, **ALL_FIELDS}))[-1]
        assert len(last["choices"][0]["response_token_ids"]) == 200


async def test_sglang_generates_from_input_ids() -> None:
    async with served("sglang") as (model, client):
        params = {"max_new_tokens": 20, "sampling_seed": 5, "ignore_eos": True}
        body = {
            "input_ids": model.engine.model.tokenizer.encode("def f"),
            "sampling_params": params,
            "return_logprob": True,
        }
        whole = await post(client, "/generate", body)
        meta = whole["meta_info"]
        assert meta["finish_reason"] == {"type": "length", "length": 20}
        assert (meta["prompt_tokens"], meta["completion_tokens"], meta["weight_version"]) == (2, 20, "1")
        assert [token for _, token, _ in meta["output_token_logprobs"]] == whole["output_ids"]
        assert (await post(client, "/generate", {**body, "input_ids": None, "text": "def f"}))["text"] == whole["text"]
        parts = await stream(client, "/generate", body)
        assert parts[-1]["output_ids"] == whole["output_ids"]
        refused: list[Any] = [{}, {"text": "a", "input_ids": [1]}, {"input_ids": [10**9]}, {"input_ids": []}]
        for wrong in refused:
            answer = await client.post("/generate", json=wrong)
            assert answer.status_code == 400
            assert answer.json()["object"] == "error"


@pytest.mark.parametrize(("mode", "reason"), [("abort", "abort"), ("in_place", "length"), ("retract", "length")])
async def test_sglang_pause_and_new_weights(mode: str, reason: str) -> None:
    async with served("sglang") as (model, client):
        body = {"text": "def", "rid": "mine", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
        request = await running(model, client, "/generate", body)
        await post(client, "/pause_generation", {"mode": mode})
        update = {"model_path": "/weights", "weight_version": "step-4"}
        assert (await post(client, "/update_weights_from_disk", update))["success"] is True
        await post(client, "/continue_generation", {})
        meta = (await request)["meta_info"]
        assert meta["finish_reason"]["type"] == reason
        versions = [span["version"] for span in meta["weight_versions"]]
        assert versions == (["1"] if reason == "abort" else ["1", "4"])
        assert (await client.get("/get_model_info")).json()["weight_version"] == "4"


async def test_sglang_aborts_requests_by_id() -> None:
    async with served("sglang") as (model, client):
        body = {"text": "def", "rid": "mine", "sampling_params": {"max_new_tokens": 9000, "ignore_eos": True}}
        request = await running(model, client, "/generate", body)
        assert (await client.post("/abort_request", json={"rid": "mine"})).status_code == 200
        assert (await request)["meta_info"]["finish_reason"]["type"] == "abort"
        request = await running(model, client, "/generate", body)
        update = {"new_version": "v9", "abort_all_requests": True}
        assert (await post(client, "/update_weight_version", update))["new_version"] == "v9"
        assert (await request)["meta_info"]["weight_version"] == "1"
        assert model.engine.version == 9
        assert (await client.get("/health_generate")).status_code == 200
        assert (await post(client, "/flush_cache", None)) == {"success": True}


@pytest.mark.parametrize("field", ["return_token_ids", "top_k", "min_tokens", "anything"])
async def test_openai_refuses_unknown_fields(field: str) -> None:
    async with served("openai") as (_, client):
        answer = await client.post(CHATS, json={**CHAT, field: 1})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["message"] == f"Unrecognized request arguments supplied: {field}"
        assert (error["type"], error["param"]) == ("invalid_request_error", field)


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_engines_ignore_unknown_fields(dialect: str) -> None:
    async with served(dialect) as (_, client):
        await post(client, CHATS, {**CHAT, "anything": 1})

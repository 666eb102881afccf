"""Faults over HTTP: each kind as a client meets it, and the requests after it."""

import asyncio

import httpx
import pytest

from tests.support.farm.model_calls import CHATS, LONG, post, served, stream, until

FAULTS = "/faults"


async def plan(client: httpx.AsyncClient, **fault: object) -> None:
    await post(client, FAULTS, {"faults": [{"next": 1, **fault}]})


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_planned_status_is_answered_once(status: int) -> None:
    async with served() as (_, client):
        await plan(client, kind="status", status=status, retry_after_s=7)
        answer = await client.post(CHATS, json=LONG)
        assert (answer.status_code, answer.headers["retry-after"]) == (status, "7")
        assert answer.json()["error"]["message"]
        await post(client, CHATS, LONG)
        document = (await client.get(FAULTS)).json()
        assert document["injected"] == {"status": 1}
        assert 'model_server_faults_total{kind="status"} 1' in (await client.get("/metrics")).text


async def test_garbage_body_is_no_json() -> None:
    async with served() as (_, client):
        await plan(client, kind="garbage")
        answer = await client.post(CHATS, json=LONG)
        assert answer.status_code == 200
        with pytest.raises(ValueError, match="Expecting"):
            answer.json()


@pytest.mark.parametrize("streaming", [False, True])
async def test_connection_drops_before_answer(streaming: bool) -> None:
    async with served() as (model, client):
        await plan(client, kind="drop_before")
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHATS, json={**LONG, "stream": streaming})
        assert model.engine.metrics.requests == 0
        await post(client, CHATS, LONG)


@pytest.mark.parametrize("streaming", [False, True])
async def test_connection_drops_in_the_answer(streaming: bool) -> None:
    async with served() as (model, client):
        await plan(client, kind="drop_during", after_tokens=5)
        async with client.stream("POST", CHATS, json={**LONG, "stream": streaming}) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                await answer.aread()
        await until(lambda: not model.engine.running)
        await post(client, CHATS, LONG)


async def test_hanging_request_ends_with_its_client() -> None:
    async with served() as (model, client):
        await plan(client, kind="hang")
        hanging = asyncio.create_task(client.post(CHATS, json=LONG))
        await until(lambda: model.faults.injected["hang"])
        await post(client, CHATS, LONG)
        assert not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])
        await post(client, CHATS, LONG)


async def test_hanging_request_does_not_hold_the_server() -> None:
    async with served() as (model, client):
        await plan(client, kind="hang")
        hanging = asyncio.create_task(client.post(CHATS, json=LONG))
        await until(lambda: model.faults.injected["hang"])
        model.engine.close()
        assert (await hanging).status_code == 503


async def test_delayed_answer_is_whole() -> None:
    async with served() as (_, client):
        await plan(client, kind="delay", seconds=0.01)
        assert (await post(client, CHATS, LONG))["usage"]["completion_tokens"] == 200


async def test_stream_stalls_after_its_tokens() -> None:
    async with served() as (model, client):
        await plan(client, kind="stall", after_tokens=6, seconds=3600)
        stalled = asyncio.create_task(stream(client, CHATS, LONG))
        await until(lambda: model.engine.metrics.generated_tokens >= 6)
        await post(client, CHATS, LONG)
        assert not stalled.done()
        assert model.engine.running == 1
        model.engine.abort_all()
        parts = await stalled
        assert parts[-1]["choices"][0]["finish_reason"] == "abort"


async def test_aborted_reply_is_partial() -> None:
    async with served() as (_, client):
        await plan(client, kind="abort", after_tokens=9)
        answer = await post(client, CHATS, {**LONG, "return_token_ids": True})
        (choice,) = answer["choices"]
        assert (choice["finish_reason"], len(choice["token_ids"])) == ("abort", 9)


async def test_slow_tokens_slow_one_request() -> None:
    async with served() as (model, client):
        await plan(client, kind="slow_tokens", latency_ms=60_000)
        slow = asyncio.create_task(client.post(CHATS, json=LONG))
        await until(lambda: model.engine.running)
        await post(client, CHATS, LONG)
        assert model.engine.running == 1
        model.engine.abort_all()
        assert (await slow).json()["usage"]["completion_tokens"] == 1


async def test_faults_are_listed_and_cleared() -> None:
    async with served() as (_, client):
        await plan(client, kind="hang", next=3)
        assert (await client.get(FAULTS)).json()["faults"] == [{"kind": "hang", "next": 3, "seen": 0, "hits": 0}]
        assert (await client.delete(FAULTS)).json()["faults"] == []
        await post(client, CHATS, LONG)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"faults": [{"kind": "hang"}]}', b'{"faults": [], "x": 1}'])
async def test_wrong_documents_are_refused(body: bytes) -> None:
    async with served() as (_, client):
        answer = await client.post(FAULTS, content=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"]

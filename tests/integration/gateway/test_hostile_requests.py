"""The gateway under attack: each request gets a problem document, and nothing is lost or changed."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from farm.gateway import listen, serving
from farm.http_listener import AddressTaken
from farm.schemas.problems import PREFIX
from farm.store import EmbeddedRedis, Store
from tests.support.gateway_server import AS_OPERATOR, RecordingScheduler, running_gateway
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec

pytestmark = pytest.mark.redis

Role = Literal["viewer", "learner", "operator"]
TOKENS: dict[Role, str] = {"viewer": "v-token", "learner": "l-token", "operator": "o-token"}
RUN: dict[str, Any] = {"taskset": "demo", "policy": "nop", "group_size": 1}
LEASE: dict[str, Any] = {"consumer": "c"}
HUGE = 10**400

BAD_RUNS: list[Any] = [
    [], "run", 1, None, {}, {"taskset": "demo"},
    *(RUN | {"group_size": size} for size in (0, -1, 1001, HUGE, 1.5, "2", None, True, [1], 2**63)),
    *(RUN | {"groups": groups} for groups in (0, -3, HUGE, "x", 1e300)),
    *(RUN | {"policy": policy} for policy in
      ("", "gold", "file:///etc/passwd", "http://", "oracle ", "x" * 5000, 5, {}, {"endpoint": "ftp://x"},
       {"endpoint": "http://h", "sampling_params": {"a": {"b": 1}}}, {"endpoint": "http://h", "api_key": "x"},
       {"endpoint": "http://h", "sampling_params": {str(n): n for n in range(65)}},
       {"endpoint": "http://h", "sampling_params": {"n": HUGE}})),
    *(RUN | {"limits": bad} for bad in
      ({"agent_s": -1}, {"agent_s": 0}, {"agent_s": 1e9}, {"max_turns": 0}, {"boot_s": "5"}, {"surprise": 1}, 7)),
    *(RUN | {"seed": seed} for seed in (-1, HUGE, 0.5)),
    *(RUN | {"taskset": taskset} for taskset in ("", 5, None, ["demo"], "x" * 2000)),
    *(RUN | {"tools": tools} for tools in
      (["cursr"], ["codex", "cursor"], ["bash"] * 65, ["x" * 200], ["-"], [7], 7, {"bash": 1}, [["bash"]])),
    RUN | {"split": "test"}, RUN | {"surprise": 1}, RUN | {"run_id": "mine"},
]  # a table, read across  # fmt: skip

BAD_LEASES: list[Any] = [
    {}, [], {"consumer": ""}, {"consumer": "a b"}, {"consumer": "x" * 200}, {"consumer": "a\n"}, {"consumer": 5},
    *(LEASE | {"max_groups": most} for most in (0, -1, 257, HUGE, "1", 1.5, True)),
    *(LEASE | {"wait_s": wait} for wait in (-1, 301, HUGE, "1", None)),
    *(LEASE | {"lease_s": lease} for lease in (0, -1, 1e12, HUGE)),
    *(LEASE | {"run_id": run} for run in ("", "../x", "A", "a{b}", "a:b", "x" * 65, 7, "*")),
    *(LEASE | {"max_tokens": most} for most in (0, -1, HUGE)),
    LEASE | {"max_staleness": 1}, LEASE | {"policy_version": -1}, LEASE | {"zero_variance": "maybe"},
    LEASE | {"incomplete": "drop"}, LEASE | {"surprise": 1},
]  # a table, read across  # fmt: skip

RAW_BODIES: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"", 422),
    (b"\xff\xfe", 400),
    (b'{"consumer": NaN}', 400),
    (b'{"consumer": "c", "wait_s": Infinity}', 400),
    (b'{"consumer": "c", "wait_s": -Infinity}', 400),
    (b'{"consumer": "c", "max_groups": ' + b"9" * 5000 + b"}", 400),
    (b'{"consumer": "c", "wait_s": 1e999}', 422),
    (b'{"consumer": "\\ud800"}', 400),
    (b"[" * 50_000 + b"]" * 50_000, 400),
    (b'{"a":' * 20_000 + b"1" + b"}" * 20_000, 400),
    (b"[" * 10_000_000, 413),
    (b'{"consumer": "' + b"x" * 2_000_000 + b'"}', 413),
    (b"null", 422),
    (b'{"consumer": "c"} trailing', 400),
]

PATHS = [
    "/v1/runs/..", "/v1/runs/../../etc/passwd", "/v1/runs/%2e%2e%2fx", "/v1/runs/A", "/v1/runs/" + "x" * 500,
    "/v1/runs/%00", "/v1/runs/a%7Bb%7D", "/v1/rollouts/run-a", "/v1/rollouts/%2F", "/v1/rollouts/x/turns",
    "/v1/rollouts?limit=0", "/v1/rollouts?limit=1001", "/v1/rollouts?limit=-1", "/v1/rollouts?limit=1e3",
    "/v1/rollouts?run_id=a:b", "/v1/rollouts?status=done", "/v1/rollouts?cursor=x", "/v1/rollouts?cursor=",
    "/v1/rollouts?cursor=run-a:99999999999999999999", "/v1/nothing", "/", "/v1", "/docs", "/redoc", "//", "/v1/lease",
    "/v1/runs/run-zzz", "/openapi.json/x",
]  # a table, read across  # fmt: skip

STARTS = [
    b"",
    b"\x16\x03\x01garbage\r\n\r\n",
    b"GET /v1/runs HTTP/1.1\r\nHost: x\r\nA: ",
    b"POST /v1/lease HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
]


def problem(response: httpx.Response) -> int:
    assert response.headers["content-type"] == "application/problem+json", response.text[:200]
    body = response.json()
    assert body["type"].startswith(PREFIX)
    assert body["status"] == response.status_code
    assert "Traceback" not in response.text
    assert len(response.content) < 10_000
    return response.status_code


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    async with running_store(tmp_path) as opened:
        await opened.put_run(run_spec())
        for index in range(2):
            await opened.publish(make_rollout(index=index))
        yield opened


@pytest.fixture
async def http(store: Store, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running_gateway(store, tmp_path) as url,
        httpx.AsyncClient(base_url=url, timeout=30, headers=AS_OPERATOR) as client,
    ):
        yield client


async def untouched(store: Store) -> bool:
    lease = await store.lease("check", "run-a", lease_s=60, max_groups=9)
    return len(await store.list_runs()) == 1 and [group.deliveries for group in lease.groups] == [1]


async def test_bad_field_values_are_refused(http: httpx.AsyncClient, store: Store) -> None:
    for path, bodies in (("/v1/runs", BAD_RUNS), ("/v1/lease", BAD_LEASES)):
        for body in bodies:
            content = json.dumps(body).encode()
            answer = await http.post(path, content=content, headers={"content-type": "application/json"})
            assert problem(answer) in (400, 422), body
            leaked = re.search(r"Input|Body\b|pattern|constrained|function-|(?<!un)validat", answer.text)
            assert not leaked, answer.text
    assert await untouched(store)


async def test_bad_bodies_are_refused(http: httpx.AsyncClient, store: Store) -> None:
    for content, status in RAW_BODIES:
        answer = await http.post("/v1/lease", content=content, headers={"content-type": "application/json"})
        assert problem(answer) == status, content[:60]
    assert await untouched(store)


async def test_bad_paths_and_methods_are_refused(http: httpx.AsyncClient, store: Store) -> None:
    for path in PATHS:
        answer = await http.get(path)
        assert problem(answer) in (404, 405, 422), path
        assert answer.json()["detail"] not in ("", "Not Found", "Method Not Allowed")
    for method in ("PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "BREW"):
        assert problem(await http.request(method, "/v1/runs")) == 405
    for lease_id in ("x", "run-a.guess", "run-a." + "x" * 24, "../../x", "run-a.%00" + "x" * 20, "*." + "x" * 24):
        for word in ("ack", "nack", "extend"):
            assert problem(await http.post(f"/v1/leases/{lease_id}/{word}", json={})) in (404, 405, 422)
    assert await untouched(store)


async def test_unknown_query_parameter_is_refused_by_name(http: httpx.AsyncClient) -> None:
    many = "&".join(f"a{number}=1" for number in range(99))
    for path in ("/v1/rollouts?run=run-a", "/v1/runs?most=1", f"/v1/rollouts?limit=1&{many}"):
        answer = await http.get(path)
        assert problem(answer) == 422, path
        assert "there is no such parameter; there are" in answer.json()["detail"]
    named = (await http.get("/v1/rollouts?run=run-a&limit=1")).json()
    assert [error["field"] for error in named["errors"]] == ["run"]
    assert (await http.get("/v1/rollouts?run_id=run-a&limit=1")).status_code == 200
    assert (await http.get("/healthz?probe=1")).status_code == 200


async def test_endless_body_is_refused(http: httpx.AsyncClient, store: Store) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    answer = await http.post("/v1/lease", content=endless(), headers={"content-type": "application/json"})
    assert problem(answer) == 413
    assert await untouched(store)


async def test_foreign_content_type_or_host_is_refused(http: httpx.AsyncClient, store: Store) -> None:
    """A web page in a browser on this machine could send such requests without a preflight request."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        answer = await http.post("/v1/lease", content=b'{"consumer": "c"}', headers={"content-type": kind})
        assert problem(answer) == 415
    for host in ("evil.example", "127.0.0.1.evil.example:80", "[", ""):
        answer = await http.get("/v1/runs", headers={"host": host, "authorization": ""})
        assert problem(answer) == 401, "a page that had its own name point here still has no token"
    assert (await http.get("/v1/runs", headers={"host": "localhost:1"})).status_code == 200
    assert await untouched(store)


async def test_invalid_or_unfinished_requests_block_no_others(http: httpx.AsyncClient, store: Store) -> None:
    port = http.base_url.port
    assert port is not None
    writers = []
    for start in STARTS:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        await writer.drain()
        writers.append(writer)
    assert (await http.get("/v1/runs")).status_code == 200
    for writer in writers:
        writer.close()
    assert await untouched(store)


UNFINISHED = [
    b"",
    b"GET /healthz HT",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: ",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
    b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
]


@pytest.mark.parametrize("trickles", [False, True])
async def test_unfinished_request_is_closed_after_idle_timeout(store: Store, tmp_path: Path, trickles: bool) -> None:
    """The timeout also ends a connection that sends single bytes, and a refused body does not keep it open."""
    async with (
        running_gateway(store, tmp_path, tokens=TOKENS, idle_s=3) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):

        async def hold(start: bytes) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
            writer.write(start)
            ending = asyncio.create_task(reader.read(-1))
            while trickles and not ending.done():
                assert (await http.get("/healthz")).status_code == 200
                writer.write(b"x" if start else b"")
            async with asyncio.timeout(30):
                await asyncio.wait({ending})
            writer.close()

        async with asyncio.timeout(60):
            await asyncio.gather(*(hold(start) for start in UNFINISHED))
    assert await untouched(store)


async def test_unauthorized_request_is_refused_before_body(store: Store, tmp_path: Path) -> None:
    """The body never arrives, so a gateway that waits for it would not answer."""
    async with running_gateway(store, tmp_path, tokens=TOKENS) as url:
        port = httpx.URL(url).port
        for length in (100, 10_000_000):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
            writer.write(head.encode())
            async with asyncio.timeout(60):
                answer = await reader.readuntil(b"\r\n")
            assert answer.startswith(b"HTTP/1.1 401 ")
            writer.close()


CALLS: list[tuple[str, str, Role]] = [
    ("GET", "/v1/runs", "viewer"),
    ("GET", "/v1/runs/run-a", "viewer"),
    ("GET", "/v1/rollouts", "viewer"),
    ("GET", "/v1/rollouts/run-a-g000000-000", "viewer"),
    ("GET", "/v1/rollouts/run-a-g000000-000/turns", "viewer"),
    ("GET", "/v1/status", "viewer"),
    ("GET", "/metrics", "viewer"),
    ("GET", "/metrics/nodes/node-1", "viewer"),
    ("GET", "/v1/discovery/prometheus", "viewer"),
    ("POST", "/v1/lease", "learner"),
    ("POST", "/v1/leases/run-a.aaaaaaaaaaaaaaaaaaaaaaaa/ack", "learner"),
    ("POST", "/v1/leases/run-a.aaaaaaaaaaaaaaaaaaaaaaaa/nack", "learner"),
    ("POST", "/v1/leases/run-a.aaaaaaaaaaaaaaaaaaaaaaaa/extend", "learner"),
    ("POST", "/v1/runs", "operator"),
    ("POST", "/v1/runs/run-a/pause", "operator"),
    ("POST", "/v1/runs/run-a/resume", "operator"),
    ("POST", "/v1/runs/run-a/cancel", "operator"),
]


STRANGERS = [
    None, "", "Bearer", "Bearer x", "Basic o-token", "o-token", "Bearer o-token x", "Bearer o-toke", "Bearer O-TOKEN",
    "Bearer " + "x" * 5000,
]  # a table, read across  # fmt: skip


async def test_each_role_has_its_permissions(store: Store, tmp_path: Path) -> None:
    ranks = list(TOKENS)
    async with (
        running_gateway(store, tmp_path, tokens=TOKENS) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):

        async def call(method: str, path: str, authorization: str | None) -> httpx.Response:
            headers = {} if authorization is None else {"authorization": authorization}
            body = RUN if path == "/v1/runs" else LEASE if path == "/v1/lease" else {}
            return await http.request(method, path, headers=headers, json=body if method == "POST" else None)

        for method, path, least in CALLS:
            for stranger in STRANGERS:
                refused = await call(method, path, stranger)
                assert problem(refused) == 401, stranger
                assert refused.headers["www-authenticate"] == "Bearer"
            for role in ranks:
                answer = await call(method, path, f"Bearer {TOKENS[role]}")
                if ranks.index(role) < ranks.index(least):
                    assert problem(answer) == 403, (method, path, role)
                else:
                    assert answer.status_code not in (401, 403), (method, path, role)


async def test_unauthorized_client_reads_only_health(store: Store, tmp_path: Path) -> None:
    async with (
        running_gateway(store, tmp_path, tokens=TOKENS) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        assert problem(await http.get("/v1/runs/run-a")) == 401
        assert problem(await http.get("/v1/runs/run-zzz")) == 401
        bad = {"content-type": "application/json", "idempotency-key": "k"}
        for body in (b'{"consumer": ""}', b"{", b"[" * 100_000):
            assert problem(await http.post("/v1/lease", content=body, headers=bad)) == 401
        assert problem(await http.get("/v1/nothing")) == 401


async def test_redis_outage_is_503_until_recovery(tmp_path: Path, own_port: int) -> None:
    async with EmbeddedRedis(tmp_path, port=own_port) as first:
        store = Store(first.url)
        async with (
            running_gateway(store, tmp_path) as url,
            httpx.AsyncClient(base_url=url, timeout=60, headers=AS_OPERATOR) as http,
        ):
            assert (await http.get("/readyz")).status_code == 200
            await first.__aexit__(None, None, None)
            for path in ("/readyz", "/v1/runs", "/v1/rollouts"):
                answer = await http.get(path)
                assert problem(answer) == 503
                assert "redis_url" in answer.json()["detail"]
                assert (tmp_path / "redis" / "password").read_text() not in answer.text
            assert (await http.get("/healthz")).status_code == 200
            async with EmbeddedRedis(tmp_path, port=own_port):
                assert (await http.get("/readyz")).status_code == 200
            await store.close()


async def test_gateway_fault_is_500_without_traceback(store: Store, tmp_path: Path) -> None:
    class Broken(RecordingScheduler):
        async def status(self) -> Any:
            return None

    async with (
        running_gateway(store, tmp_path, scheduler=Broken()) as url,
        httpx.AsyncClient(base_url=url, timeout=60, headers=AS_OPERATOR) as http,
    ):
        answer = await http.get("/v1/runs")
        assert problem(answer) == 500
        assert "NoneType" not in answer.text


async def test_address_in_use_is_one_error_line(http: httpx.AsyncClient) -> None:
    port = http.base_url.port
    assert port is not None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody calls")

    with pytest.raises(AddressTaken, match=f"127.0.0.1:{port}: .*--port"):
        async with serving(app, listen("127.0.0.1", port)):
            pass

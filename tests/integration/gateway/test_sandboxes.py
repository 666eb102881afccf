"""Learner sandboxes over real HTTP, on a node with real sandboxes."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from farm.client import FarmClient, RemoteSandbox
from farm.core.run import TaskRef
from farm.policy.base import Policy
from farm.scheduler.admission import AdmissionSettings, Thresholds
from farm.scheduler.nodes import SchedulerSettings
from farm.schemas.problems import PREFIX
from farm.store import Store
from farm.tasks import pack, task_ref
from farm.tasks.validation_file import FitTasks
from sandboxes.runtimes.oci.runtime import OciRuntime
from tests.support.farm import tiny
from tests.support.farm.sandbox_farm import SandboxFarm, sandbox_farm, until
from tests.support.gateway_server import running_gateway
from tests.support.redis_server import running_store

pytestmark = [pytest.mark.docker, pytest.mark.redis]

LEARNER, OPERATOR, VIEWER = "a-learner", "an-operator", "a-viewer"
NEVER = Thresholds(math.inf, math.inf, math.inf)
NEVER_PRESSED = SchedulerSettings(admission=AdmissionSettings(NEVER, NEVER, NEVER, NEVER))
T = TypeVar("T")


@dataclass
class Place:
    farm: SandboxFarm
    http: httpx.AsyncClient
    url: str
    runtime: OciRuntime
    image: str

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, json={} if body is None else body, headers=named)

    async def create(self, **fields: Any) -> str:
        """The path of a new sandbox of the tiny task."""
        body = fields if "image" in fields else {"task_id": "tiny", "taskset": "demo", **fields}
        made = await self.post("/v1/sandboxes", body)
        assert made.status_code == 201, made.text
        return f"/v1/sandboxes/{made.json()['sandbox_id']}"

    async def run(self, path: str, command: str) -> str:
        answer = await self.post(f"{path}/exec", {"command": command, "timeout_s": 30.0})
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["stdout"]
        return text

    async def in_client(self, work: Callable[[FarmClient], T]) -> T:
        def use() -> T:
            with FarmClient(self.url, OPERATOR) as client:
                return work(client)

        return await asyncio.to_thread(use)

    async def lives(self) -> int:
        return len([sandbox async for sandbox in self.runtime.living()])


@pytest.fixture
async def place(tmp_path: Path, oci_runtime: OciRuntime, tiny_image: str) -> AsyncIterator[Place]:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    bundle = tiny.task(tiny_image)

    def prepare(path: Path, tools: Sequence[str], fit: FitTasks | None = None, /) -> Sequence[tuple[TaskRef, bytes]]:
        return [(task_ref(bundle), pack(bundle))]

    async with AsyncExitStack() as stack:
        store: Store = await stack.enter_async_context(running_store(tmp_path))
        farm = await stack.enter_async_context(sandbox_farm(store, tmp_path, NEVER_PRESSED))
        gateway = running_gateway(
            store,
            tmp_path,
            tokens={"learner": LEARNER, "operator": OPERATOR, "viewer": VIEWER},
            scheduler=farm.scheduler,
            sandbox_nodes=farm,
            prepare=prepare,
        )
        url = await stack.enter_async_context(gateway)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120.0, headers=_as(LEARNER)))
        await farm.start_node("node-1", oci_runtime)
        yield Place(farm, http, url, oci_runtime, tiny_image)
        for name in list(farm.agents):
            await farm.stop_node(name)
        assert not [sandbox async for sandbox in oci_runtime.living()], "a sandbox was left behind"


def _as(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    body = response.json()
    assert body["status"] == response.status_code
    assert body["detail"]
    return response.status_code, body["type"].removeprefix(PREFIX)


# Its life


async def test_learner_creates_lists_and_deletes_sandbox(place: Place) -> None:
    made = await place.post("/v1/sandboxes", {"task_id": "tiny", "taskset": "demo"})
    state = made.json()
    assert (made.status_code, state["node"], state["task_id"]) == (201, "node-1", "tiny")
    assert state["instruction"] == "answer() must return 42."
    assert "bash" in [tool["function"]["name"] for tool in state["tools"]]
    path = f"/v1/sandboxes/{state['sandbox_id']}"
    listed = (await place.http.get("/v1/sandboxes")).json()
    assert [one["sandbox_id"] for one in listed["sandboxes"]] == [state["sandbox_id"]]
    await until(lambda: place.farm.slots_of_sandboxes == 1)
    assert (await place.http.get("/v1/nodes")).json()["nodes"][0]["sandboxes"] == 1
    assert 'farm_node_sandboxes{node="node-1"} 1.0' in (await place.http.get("/metrics")).text
    assert (await place.http.delete(path)).json() == {"sandbox_id": state["sandbox_id"]}
    assert await place.lives() == 0
    assert (await place.http.delete(path)).status_code == 200, "a repeated delete is no error"
    assert problem(await place.http.get(path)) == (410, "sandbox-gone")
    assert problem(await place.post(f"{path}/grade")) == (410, "sandbox-gone")
    await until(lambda: place.farm.slots_of_sandboxes == 0)
    assert 'farm_sandbox_calls_total{call="create",outcome="ok"} 1.0' in (await place.http.get("/metrics")).text


async def test_sandbox_of_image_has_nothing_to_grade(place: Place) -> None:
    path = await place.create(image="farm-base:1")
    assert "hello" in await place.run(path, "echo hello")
    assert problem(await place.post(f"{path}/grade")) == (422, "not-available")


async def test_image_of_no_task_is_refused(place: Place) -> None:
    for image in ("debian:12", place.image, "../etc", "a b"):
        refused = await place.post("/v1/sandboxes", {"image": image})
        assert problem(refused) == (422, "sandbox-refused"), image
    assert place.farm.slots_of_sandboxes == 0


async def test_idle_sandbox_warns_and_then_expires(place: Place) -> None:
    path = await place.create(idle_s=100.0)
    fresh = (await place.http.get(path)).json()
    assert fresh["warning"] == ""
    place.farm.pass_time(81.0)
    late = (await place.http.get(path)).json()
    assert late["warning"] == "the sandbox expires in 19 s, when it has no calls for 100 s"
    used = (await place.post(f"{path}/exec", {"argv": ["true"], "timeout_s": 30.0})).json()
    assert used["warning"] == ""
    assert used["expires_at"] > late["expires_at"]
    place.farm.pass_time(100.0)
    assert problem(await place.post(f"{path}/exec", {"argv": ["true"], "timeout_s": 30.0})) == (410, "sandbox-gone")


async def test_sandboxes_of_crashed_client_are_removed(place: Place) -> None:
    await place.create(idle_s=100.0)
    await place.create(idle_s=500.0)
    await until(lambda: place.farm.slots_of_sandboxes == 2)
    place.farm.pass_time(101.0)  # no client makes a call from here on
    await until(lambda: place.farm.slots_of_sandboxes == 1)
    assert await place.lives() == 1


async def test_busy_sandbox_ends_at_its_timeout(place: Place) -> None:
    path = await place.create(idle_s=100.0, timeout_s=1000.0)
    body = {"command": "touch begun; sleep 600", "timeout_s": 900.0}
    running = asyncio.create_task(place.post(f"{path}/exec", body))
    while (await place.http.get(f"{path}/files", params={"path": "begun"})).status_code != 200:
        pass
    place.farm.pass_time(999.0)
    assert "when it reaches its timeout_s" in (await place.http.get(path)).json()["warning"]
    place.farm.pass_time(1.0)
    assert problem(await running) == (410, "sandbox-gone")
    await until(lambda: place.farm.slots_of_sandboxes == 0)


async def test_no_free_slot_is_refused_or_waited_for(place: Place) -> None:
    paths = [await place.create() for _ in range(3)]
    body = {"task_id": "tiny", "taskset": "demo"}
    refused = await place.post("/v1/sandboxes", body)
    assert problem(refused) == (503, "no-slot")
    assert refused.headers["retry-after"] == "1"
    assert "all 3 slots of 1 node are taken, 3 of them by sandboxes of learners" in refused.json()["detail"]
    waiting = asyncio.create_task(place.post("/v1/sandboxes", body | {"wait_s": 60.0}))
    await place.http.delete(paths[0])
    assert (await waiting).status_code == 201
    assert problem(await place.post(f"{paths[1]}/fork")) == (503, "no-slot")


async def test_repeated_create_makes_one_sandbox(place: Place) -> None:
    body = {"task_id": "tiny", "taskset": "demo"}
    first = await place.post("/v1/sandboxes", body, idempotency_key="once")
    again = await place.post("/v1/sandboxes", body, idempotency_key="once")
    assert again.json()["sandbox_id"] == first.json()["sandbox_id"]
    assert await place.lives() == 1
    path = f"/v1/sandboxes/{first.json()['sandbox_id']}"
    added = {"command": "echo line >> log; head -c 20000 /dev/zero | tr '\\0' x", "timeout_s": 30.0}
    for _ in range(2):
        answer = await place.post(f"{path}/exec", added, idempotency_key="add")
        assert len(answer.json()["stdout"]) == 20_000, "too long for the gateway to keep"
    assert await place.run(path, "cat log") == "line\n"


# Calls


class Recorded(Policy):
    """Makes one call in each turn, and keeps what it read."""

    def __init__(self, calls: Sequence[tuple[str, str]]) -> None:
        self.calls = list(calls)
        self.turn = 0


async def test_tool_results_equal_those_of_toolset(place: Place, tiny_image: str) -> None:
    """Arguments that are malformed, misspelt or refused give the text that a policy of an episode reads."""
    from farm.tasks import policy_spec
    from sandboxes.tools import Toolset

    calls = [
        ("bash", '{"command": "cd / && pwd"}'),
        ("bash", '{"command": "pwd; exit 3"}'),
        ("bash", '{"command": '),
        ("bash", '{"comand": "ls"}'),
        ("bash", "[]"),
        ("edit", '{"path": "tiny.py", "old": "41", "new": "42"}'),
        ("no such/tool", "{}"),
        ("..", "{}"),
        ("grep", '{"pattern": "answer"}'),
        ("submit", "{}"),
    ]
    path = await place.create()
    bundle = tiny.task(tiny_image)
    toolset = Toolset.of(())
    async with place.runtime.scope(policy_spec(bundle.task, labels={})) as sandbox:
        expected = [await toolset.call(sandbox, name, arguments, timeout_s=180) for name, arguments in calls]

    def use(client: FarmClient) -> list[tuple[str, str | None, bool]]:
        remote = client.sandboxes.get(path.rpartition("/")[2])
        answers = [remote.call_tool(name, arguments) for name, arguments in calls]
        return [(answer.content, answer.error_kind, answer.done) for answer in answers]

    found = await place.in_client(use)
    assert found == [(one.content, one.error_kind, one.done) for one in expected]
    direct = await place.post(f"{path}/tools/nonsense", {"arguments": {}})
    assert problem(direct) == (404, "unknown-tool")


async def test_exec_bounds_output_and_takes_stdin(place: Place) -> None:
    path = await place.create()
    body = {"command": 'cat; echo "$A" >&2; pwd', "timeout_s": 30.0, "stdin": "in\n", "env": {"A": "b"}, "cwd": "/tmp"}
    answer = (await place.post(f"{path}/exec", body)).json()
    assert (answer["exit_code"], answer["stdout"], answer["stderr"]) == (0, "in\n/tmp\n", "b\n")
    long = (await place.post(f"{path}/exec", {"argv": ["seq", "1000000"], "timeout_s": 30.0})).json()
    assert long["stdout_elided"] > 6_000_000
    assert len(long["stdout"]) < 300_000
    late = (await place.post(f"{path}/exec", {"argv": ["sleep", "60"], "timeout_s": 0.2})).json()
    assert (late["exit_code"], late["timed_out"]) == (None, True)


async def test_files_are_written_and_read_as_bytes(place: Place) -> None:
    path = await place.create()
    content = bytes(range(256)) * 4096
    octets = {"Content-Type": "application/octet-stream"}
    for existed in (False, True):
        put = await place.http.put(f"{path}/files", params={"path": "new/a"}, content=content, headers=octets)
        assert (put.json()["size"], put.json()["existed"]) == (len(content), existed)
    got = await place.http.get(f"{path}/files", params={"path": "/repo/new/a"})
    assert got.content == content
    assert float(got.headers["farm-expires-at"]) > 0
    part = await place.http.get(f"{path}/files", params={"path": "new/a", "offset": "1", "limit": "2"})
    assert part.content == content[1:3]
    await place.run(path, "truncate -s 9M large")
    assert problem(await place.http.get(f"{path}/files", params={"path": "large"})) == (413, "too-large")


async def test_fork_shares_nothing_with_its_original(place: Place) -> None:
    path = await place.create(idle_s=300.0)
    await place.run(path, "echo original > a")
    forked = await place.post(f"{path}/fork")
    assert (forked.status_code, forked.json()["fork_of"]) == (201, path.rpartition("/")[2])
    copy = f"/v1/sandboxes/{forked.json()['sandbox_id']}"
    await place.run(copy, "echo copy > a; echo only > b")
    assert await place.run(path, "cat a; ls b") == "original\n"
    await place.http.delete(path)
    assert await place.run(copy, "cat a b") == "copy\nonly\n"
    assert place.farm.agents["node-1"].sandboxes.slots_held.keys() == {copy.rpartition("/")[2]}


# Grading


async def test_solved_work_earns_one_and_untouched_zero(place: Place) -> None:
    path = await place.create()
    untouched = (await place.post(f"{path}/grade")).json()
    assert (untouched["verdict"], untouched["reward"]) == ("unresolved", 0.0)
    call = {"arguments": {"command": "sleep 1000 & echo 'def answer(): return 42' > tiny.py; cd /tmp"}}
    await place.post(f"{path}/tools/bash", call)
    solved = (await place.post(f"{path}/grade")).json()
    assert (solved["verdict"], solved["reward"], solved["components"]["verdict"]) == ("resolved", 1.0, 1.0)
    assert solved["reward_version"]
    shell = await place.post(f"{path}/tools/bash", {"arguments": {"command": "pwd; jobs | grep -c sleep"}})
    assert shell.json()["content"].split()[:2] == ["/tmp", "1"], "the shell and its job go on"
    assert await place.lives() == 1, "what graded is gone"


async def test_work_lost_from_inside_earns_zero(place: Place) -> None:
    path = await place.create()
    eat = "x = bytearray()\nwhile True: x.extend(bytes(64 << 20))"
    await place.post(f"{path}/exec", {"command": f"kill -9 1; kill -9 -1; python3 -c '{eat}'", "timeout_s": 60.0})
    graded = await place.post(f"{path}/grade")
    assert graded.status_code == 200, graded.text
    assert graded.json()["reward"] == 0.0


async def test_removed_workspace_earns_zero(place: Place) -> None:
    path = await place.create()
    await place.run(path, "cd / && rm -rf /repo")
    assert (await place.post(f"{path}/grade")).json()["reward"] == 0.0


async def test_changed_rules_change_the_reward(place: Place) -> None:
    path = await place.create()
    await place.run(path, "echo 'def answer(): return 42' > tiny.py")
    kept = await place.farm.store.rules.put('name = "double"\n[weights]\nverdict = 2.0\n', current=False)
    assert (await place.post(f"{path}/grade")).json()["reward"] == 1.0
    assert (await place.post(f"{path}/grade", {"rewards": kept.version})).json()["reward"] == 2.0
    assert problem(await place.post(f"{path}/grade", {"rewards": "none-of-these"})) == (404, "not-found")


# Refusals


async def test_malformed_requests_are_problem_documents(place: Place) -> None:
    path = await place.create()
    octets = {"Content-Type": "application/octet-stream"}
    unknown = "/v1/sandboxes/sb-000000000000"
    for method, target, sent, expected in (
        ("GET", unknown, {}, (404, "not-found")),
        ("POST", f"{unknown}/grade", {"json": {}}, (404, "not-found")),
        ("POST", f"{unknown}/tools/bash", {"json": {}}, (404, "not-found")),
        ("DELETE", unknown, {}, (404, "not-found")),
        ("GET", "/v1/sandboxes/../runs%00", {}, (404, "not-found")),
        ("GET", "/v1/sandboxes/sb-1", {}, (422, "invalid-request")),
        ("POST", "/v1/sandboxes", {"json": {}}, (422, "invalid-request")),
        ("POST", "/v1/sandboxes", {"json": {"task_id": "tiny", "image": "a"}}, (422, "invalid-request")),
        ("POST", "/v1/sandboxes", {"json": {"task_id": "tiny", "idle_s": -1}}, (422, "invalid-request")),
        ("POST", "/v1/sandboxes", {"json": {"task_id": "tiny", "wait": 1}}, (422, "invalid-request")),
        ("POST", "/v1/sandboxes", {"json": {"task_id": "tiny", "tools": ["bsh"]}}, (422, "invalid-request")),
        ("POST", "/v1/sandboxes", {"json": {"task_id": "tiny"}}, (404, "not-found")),
        ("POST", "/v1/sandboxes", {"json": {"task_id": "big", "taskset": "demo"}}, (422, "taskset")),
        ("POST", "/v1/sandboxes", {"json": {"task_id": "tiny", "taskset": "/tmp"}}, (403, "forbidden")),
        ("POST", f"{path}/exec", {"json": {"timeout_s": 1.0}}, (422, "invalid-request")),
        ("POST", f"{path}/exec", {"json": {"argv": [], "timeout_s": 1.0}}, (422, "invalid-request")),
        ("POST", f"{path}/exec", {"json": {"argv": ["a\0b"], "timeout_s": 1.0}}, (422, "invalid-request")),
        ("POST", f"{path}/exec", {"content": "x" * 1_048_577}, (413, "too-large")),
        ("POST", f"{path}/tools/bash", {"json": {"arguments": 1}}, (422, "invalid-request")),
        ("POST", f"{path}/tools/bash", {"content": b"[" * 1_048_577}, (413, "too-large")),
        ("GET", f"{path}/files", {}, (422, "invalid-request")),
        ("GET", f"{path}/files", {"params": {"path": "none"}}, (422, "path-refused")),
        ("GET", f"{path}/files", {"params": {"path": "/repo"}}, (422, "path-refused")),
        ("GET", f"{path}/files", {"params": {"path": "a\0"}}, (422, "invalid-request")),
        ("GET", f"{path}/files", {"params": {"path": "tiny.py", "follow": "1"}}, (422, "invalid-request")),
        ("PUT", f"{path}/files", {"params": {"path": "a"}, "json": {}}, (415, "unsupported-media-type")),
        (
            "PUT",
            f"{path}/files",
            {"params": {"path": "/proc/a"}, "content": b"x", "headers": octets},
            (422, "path-refused"),
        ),
        (
            "PUT",
            f"{path}/files",
            {"params": {"path": "a"}, "content": bytes(8_388_609), "headers": octets},
            (413, "too-large"),
        ),
    ):
        answer = await place.http.request(method, target, **sent)
        assert problem(answer) == expected, (method, target, answer.text)
    assert await place.run(path, "echo still here") == "still here\n"


async def test_viewer_may_only_read(place: Place) -> None:
    path = await place.create()
    viewer = {"headers": _as(VIEWER)}
    assert (await place.http.get(path, **viewer)).status_code == 200
    for method, target in (("POST", "/v1/sandboxes"), ("POST", f"{path}/grade"), ("DELETE", path)):
        body = {"json": {"task_id": "tiny"}} if method == "POST" and target == "/v1/sandboxes" else {}
        assert problem(await place.http.request(method, target, **viewer, **body)) == (403, "forbidden")
    assert problem(await place.http.get(f"{path}/files", params={"path": "a"}, **viewer)) == (403, "forbidden")


# Restarts and drain


async def test_restarted_agent_answers_that_sandbox_is_gone(place: Place) -> None:
    path = await place.create()
    await place.farm.stop_node("node-1")
    assert problem(await place.http.get(path)) == (410, "sandbox-gone")
    await place.farm.start_node("node-1", place.runtime)
    for answer in (await place.http.get(path), await place.post(f"{path}/grade")):
        assert problem(answer) == (410, "sandbox-gone")
        assert "the agent of the node node-1 has restarted; create another" in answer.json()["detail"]
    await place.create()


async def test_restarted_scheduler_learns_living_sandboxes(place: Place) -> None:
    path = await place.create()
    await until(lambda: place.farm.slots_of_sandboxes == 1)
    await place.farm.restart_scheduler()
    await until(lambda: place.farm.slots_of_sandboxes == 1)
    assert await place.run(path, "echo on") == "on\n"


async def test_restarted_gateway_finds_living_sandbox(place: Place, tmp_path: Path) -> None:
    path = await place.create()
    other = running_gateway(
        place.farm.store,
        tmp_path,
        tokens={"learner": LEARNER},
        scheduler=place.farm.scheduler,
        sandbox_nodes=place.farm,
    )
    async with other as url, httpx.AsyncClient(base_url=url, headers=_as(LEARNER), timeout=60.0) as http:
        answer = await http.post(f"{path}/exec", json={"argv": ["echo", "found"], "timeout_s": 30.0})
    assert answer.json()["stdout"] == "found\n"


async def test_draining_node_lets_sandboxes_run_out(place: Place) -> None:
    path = await place.create(idle_s=100.0)
    operator = {"headers": _as(OPERATOR)}
    assert (await place.http.post("/v1/nodes/node-1/drain", json={}, **operator)).status_code == 200
    assert problem(await place.post("/v1/sandboxes", {"image": "farm-base:1"})) == (503, "no-slot")
    place.farm.pass_time(90.0)
    used = await place.post(f"{path}/exec", {"argv": ["true"], "timeout_s": 30.0})
    assert used.json()["warning"] == "the sandbox expires in 10 s, when its node drains"
    place.farm.pass_time(10.0)
    await until(lambda: place.farm.slots_of_sandboxes == 0)


# The client


async def test_client_context_deletes_its_sandbox(place: Place) -> None:
    def use(client: FarmClient) -> float | None:
        with client.sandboxes.create("tiny", taskset="demo") as sandbox:
            assert isinstance(sandbox, RemoteSandbox)
            assert sandbox.write_file("tiny.py", b"def answer():\n    return 42\n").existed
            assert sandbox.read_file("tiny.py", limit=3) == b"def"
            assert sandbox.exec(["cat", "tiny.py"]).exit_code == 0
            with sandbox.fork() as copy:
                assert copy.state.fork_of == sandbox.id
            return sandbox.grade().reward

    assert await place.in_client(use) == 1.0
    assert await place.lives() == 0

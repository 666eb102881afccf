"""The OpenAPI document: a tester finds no difference to the gateway, and a client can be generated from it."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from farm.store import RunState, Store
from tests.support.api_tools import make_api_tools
from tests.support.gateway_server import AS_OPERATOR, OPERATOR, running_gateway
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec
from tests.support.services import missing

pytestmark = [pytest.mark.redis, pytest.mark.slow, pytest.mark.xdist_group("api")]

SETTINGS = """\
[checks]
# A field may be right by itself and wrong beside another.
positive_data_acceptance.enabled = false
# A body that is too large is refused before it is read.
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429, "5xx"]
"""
HOOKS = """\
import schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    for values in (case.body, case.query):
        if isinstance(values, dict) and isinstance(values.get("wait_s"), float | int) and 0 <= values["wait_s"] <= 300:
            values["wait_s"] = 0
"""
"""No call waits for groups that never come."""

LEARN = """\
import sys
from farm_client import AuthenticatedClient
from farm_client.api.leases import ack, lease
from farm_client.models import EmptyBody, LeaseBody

client = AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2])
answer = lease.sync(client=client, body=LeaseBody(consumer="generated", run_id="run-a"), idempotency_key="one")
[group] = answer.groups
done = ack.sync(answer.lease_id, client=client, body=EmptyBody())
print(group.group_id, [rollout.rollout_id for rollout in group.rollouts], done.stream)
"""


@pytest.fixture(scope="module")
def tools() -> Iterator[Path]:
    kept = os.environ.get("FARMTEST_STATE_DIR")
    with tempfile.TemporaryDirectory(prefix="farm-api-") as own:
        try:
            yield make_api_tools(Path(kept or own))
        except RuntimeError as error:
            missing("the tools that read the OpenAPI document", str(error))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    async with running_store(tmp_path) as opened:
        await opened.put_run(run_spec(groups=1))
        for index in range(2):
            await opened.publish(make_rollout(index=index, reward=float(index), tokens=20, version=4))
        await opened.set_run_state("run-a", RunState.FINISHED)
        yield opened


@pytest.fixture
async def url(store: Store, tmp_path: Path) -> AsyncIterator[str]:
    async with running_gateway(store, tmp_path) as served:
        yield served


async def run(program: Path, *words: object, cwd: Path, **variables: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        program,
        *map(str, words),
        cwd=cwd,
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode, printed.decode(errors="replace")


async def test_gateway_answers_as_its_document_says(url: str, tools: Path, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    (tmp_path / "hooks.py").write_text(HOOKS)
    header = f"Authorization: Bearer {OPERATOR}"
    options = ["--phases", "coverage,fuzzing", "--max-examples", "5", "--seed", "1", "--generation-database", "none"]
    words = ["run", f"{url}/openapi.json", "-H", header, *options, "--no-color"]
    code, printed = await run(
        tools / "schemathesis", *words, cwd=tmp_path, SCHEMATHESIS_HOOKS="hooks", PYTHONPATH=str(tmp_path)
    )
    assert code == 0, printed[-8000:]


async def test_generated_client_leases_and_acks_group(url: str, tools: Path, tmp_path: Path) -> None:
    document = tmp_path / "openapi.json"
    async with httpx.AsyncClient() as http:
        document.write_bytes((await http.get(f"{url}/openapi.json")).content)
    path = f"{tools}:{os.environ['PATH']}"
    options = ["--path", document, "--output-path", tmp_path / "client", "--fail-on-warning"]
    code, printed = await run(tools / "openapi-python-client", "generate", *options, cwd=tmp_path, PATH=path)
    assert code == 0, printed[-8000:]
    (tmp_path / "learn.py").write_text(LEARN)
    place = str(tmp_path / "client")
    code, printed = await run(tools / "python", "learn.py", url, OPERATOR, cwd=tmp_path, PYTHONPATH=place)
    assert (code, printed) == (0, "run-a-g000000 ['run-a-g000000-000', 'run-a-g000000-001'] drained\n")


async def test_document_names_roles_keys_and_problems(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, headers=AS_OPERATOR) as http:
        document = (await http.get("/openapi.json")).json()
        refused = await http.patch("/v1/runs/run-a")
    paths = document["paths"]
    assert paths["/healthz"]["get"]["security"] == []
    assert paths["/v1/lease"]["post"]["security"] == [{"token": ["learner"]}]
    assert {"$ref": "#/components/parameters/IdempotencyKey"} in paths["/v1/lease"]["post"]["parameters"]
    assert set(paths["/v1/rollouts/{rollout_id}"]["get"]["responses"]["200"]["content"]) == {
        "application/json",
        "application/vnd.farm+msgpack",
    }
    problems = {name for name, answer in document["components"]["responses"].items() if answer["content"]}
    assert {"Problem401", "Problem409", "Problem503"} <= problems
    assert "HTTPValidationError" not in document["components"]["schemas"]
    names = [call["operationId"] for calls in paths.values() for call in calls.values()]
    assert len(names) == len(set(names))
    assert (refused.status_code, refused.headers["Allow"]) == (405, "DELETE, GET")

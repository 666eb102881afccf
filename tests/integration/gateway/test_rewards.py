"""Rule documents and rescoring over HTTP, and by the typed client."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from farm.client import FarmClient, FarmError
from farm.rewards import default_rules, default_text
from farm.schemas.problems import PREFIX
from farm.store import Store
from tests.support.gateway_server import AS_OPERATOR, OPERATOR, running_gateway
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec

pytestmark = pytest.mark.redis

DOUBLE = 'name = "double"\n[weights]\nverdict = 2.0\n'
TOKENS: Mapping[Literal["learner", "operator", "viewer"], str] = {
    "operator": "o" * 8,
    "viewer": "v" * 8,
    "learner": "l" * 8,
}


@dataclass
class Place:
    http: httpx.AsyncClient
    store: Store
    url: str

    async def fill(self, groups: int = 2) -> None:
        await self.store.put_run(run_spec(groups=groups))
        for group in range(groups):
            for index in range(2):
                made = make_rollout(group=group, index=index, reward=float(index))
                vector = {"verdict": float(index), "resolved": float(index)}
                await self.store.publish_scored(replace(made, reward_components=vector))


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path) as url,
        httpx.AsyncClient(base_url=url, timeout=30, headers=AS_OPERATOR) as http,
    ):
        yield Place(http, store, url)


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["type"].removeprefix(PREFIX)


async def test_rule_document_is_stored_listed_and_applied(place: Place) -> None:
    own = (await place.http.get("/v1/rewards")).json()["rewards"]
    assert own == [{"version": default_rules().version, "current": True, "kept_at": 0.0, "document": default_text()}]
    put = await place.http.put("/v1/rewards", json={"document": DOUBLE})
    version = put.json()["version"]
    assert (put.status_code, put.json()["current"], version[:7]) == (200, True, "double-")
    assert (await place.http.put("/v1/rewards", json={"document": DOUBLE})).json() == put.json()
    assert [one["current"] for one in (await place.http.get("/v1/rewards")).json()["rewards"]] == [True, False]
    assert (await place.http.get(f"/v1/rewards/{version}")).json() == put.json()
    await place.fill(1)
    assert {head.reward for head in (await place.store.list_rollouts()).rollouts} == {0.0, 2.0}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"document": "name = "}, "invalid-request"),
        ({"document": DOUBLE + "wieght = 1"}, "invalid-request"),
        ({"document": DOUBLE.replace("2.0", "nan")}, "invalid-request"),
        ({"document": ""}, "invalid-request"),
        ({"document": "x" * 70_000}, "invalid-request"),
        ({"document": 7}, "invalid-request"),
        ({}, "invalid-request"),
        ({"document": DOUBLE, "curent": False}, "invalid-request"),
    ],
)
async def test_invalid_rule_document_is_refused(place: Place, body: Any, kind: str) -> None:
    answer = await place.http.put("/v1/rewards", json=body)
    assert problem(answer) == (422, kind)
    assert await place.store.rules.current_version() == default_rules().version


async def test_run_is_pinned_to_existing_reward_version(place: Place) -> None:
    kept = (await place.http.put("/v1/rewards", json={"document": DOUBLE, "current": False})).json()
    assert not kept["current"]
    run = {"taskset": "demo", "policy": "oracle", "group_size": 1}
    answer = await place.http.post("/v1/runs", json={**run, "rewards": kept["version"]})
    assert (answer.status_code, answer.json()["rewards"]) == (201, kept["version"])
    stored = await place.store.get_run(answer.json()["run_id"])
    assert stored is not None
    assert stored.spec.rewards == kept["version"]
    assert (await place.http.post("/v1/runs", json=run)).json()["rewards"] == ""
    gone = await place.http.post("/v1/runs", json={**run, "rewards": "gone-000000000000"})
    assert problem(gone) == (404, "not-found")
    assert problem(await place.http.post("/v1/runs", json={**run, "rewards": {"a": 1}})) == (422, "invalid-request")


async def test_rescore_reports_changes_and_dry_run_writes_nothing(place: Place) -> None:
    await place.fill()
    await place.http.put("/v1/rewards", json={"document": DOUBLE})
    for dry_run, then in ((True, 1.0), (False, 2.0)):
        answer = await place.http.post("/v1/rollouts/rescore", json={"run_id": "run-a", "dry_run": dry_run})
        found = answer.json()
        assert (found["groups"], found["rollouts"], found["next"], found["of"]) == ({"changed": 2}, 4, None, 2)
        assert (found["before"]["mean"], found["after"]["mean"], found["after"]["highest"]) == (0.5, 1.0, 2.0)
        assert sum(found["after"]["counts"]) == 4
        heads = (await place.http.get("/v1/rollouts")).json()["rollouts"]
        assert max(head["reward"] for head in heads) == then
    run = (await place.http.get("/v1/runs/run-a")).json()
    assert (run["summary"]["reward_mean"], run["summary"]["solved"]) == (1.0, 2)


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({}, (422, "invalid-request")),
        ({"run_id": "gone"}, (404, "not-found")),
        ({"run_id": "run-a", "version": "gone-1"}, (404, "not-found")),
        ({"run_id": "run-a", "first": -1}, (422, "invalid-request")),
        ({"run_id": "run-a", "dry_run": "yes"}, (422, "invalid-request")),
    ],
)
async def test_invalid_rescore_request_is_refused(place: Place, body: Any, refusal: tuple[int, str]) -> None:
    await place.fill(1)
    assert problem(await place.http.post("/v1/rollouts/rescore", json=body)) == refusal


async def test_only_operator_sets_rules_and_rescores(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path, tokens=TOKENS) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        for role, token in TOKENS.items():
            named = {"Authorization": f"Bearer {token}"}
            put = await http.put("/v1/rewards", json={"document": DOUBLE}, headers=named)
            anew = await http.post("/v1/rollouts/rescore", json={"run_id": "gone"}, headers=named)
            looked = await http.get("/v1/rewards", headers=named)
            wanted = (200, 404, 200) if role == "operator" else (403, 403, 200)
            assert (put.status_code, anew.status_code, looked.status_code) == wanted


async def test_client_rescores_whole_run(place: Place) -> None:
    await place.fill(3)

    def work() -> list[dict[str, int]]:
        with FarmClient(place.url, OPERATOR) as client:
            version = client.put_rewards(DOUBLE, current=False).version
            assert [one.version for one in client.rewards()] == [version, default_rules().version]
            with pytest.raises(FarmError, match="nearest one is 'verdict'"):
                client.put_rewards(DOUBLE.replace("verdict", "verdct"))
            return [dict(answer.groups) for answer in client.rescore("run-a", version)]

    assert await asyncio.to_thread(work) == [{"changed": 3}]

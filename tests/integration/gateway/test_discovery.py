"""Prometheus's discovery of the farm over HTTP, and the metrics of its nodes."""

from pathlib import Path

import httpx
import pytest

from tests.support.gateway_server import AS_OPERATOR, RecordingScheduler, running_gateway
from tests.support.redis_server import running_store

pytestmark = pytest.mark.redis


async def test_discovery_lists_the_farm_and_its_nodes_at_the_address_of_the_caller(tmp_path: Path) -> None:
    scheduler = RecordingScheduler()
    scheduler.nodes, scheduler.lost = 2, "node-9"
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path, scheduler=scheduler) as url,
        httpx.AsyncClient(base_url=url, headers=AS_OPERATOR) as http,
    ):
        answer = await http.get("/v1/discovery/prometheus", headers={"Host": "farm.example:99"})
        assert answer.headers["content-type"] == "application/json"
        node = {
            "source": "node",
            "__metrics_path__": "/metrics/nodes/node-1",
            "instance": "node-1",
            "node": "node-1",
        }
        assert answer.json() == [
            {"targets": ["farm.example:99"], "labels": {"source": "farm", "__metrics_path__": "/metrics"}},
            {"targets": ["farm.example:99"], "labels": node},
            {
                "targets": ["farm.example:99"],
                "labels": node | {"__metrics_path__": "/metrics/nodes/node-2", "instance": "node-2", "node": "node-2"},
            },
        ]
        scheduler.away = True
        away = await http.get("/v1/discovery/prometheus")
        assert (away.status_code, away.json()["type"]) == (503, "urn:farm:problem:scheduler-unavailable")


async def test_gateway_passes_on_the_metrics_of_a_node(tmp_path: Path) -> None:
    scheduler = RecordingScheduler()
    scheduler.nodes = 2
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path, scheduler=scheduler) as url,
        httpx.AsyncClient(base_url=url, headers=AS_OPERATOR) as http,
    ):
        answer = await http.get("/metrics/nodes/node-1")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert answer.text == "farm_sandboxes_living 3.0\n"
        away = await http.get("/metrics/nodes/node-2")
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        assert away.json()["detail"] == "the agent of node-2 does not answer"
        assert (await http.get("/metrics/nodes/a%2Fb")).status_code == 404
        unknown = await http.get("/metrics/nodes/node-9")
        assert (unknown.status_code, unknown.json()["detail"][:23]) == (404, "there is no node node-9")

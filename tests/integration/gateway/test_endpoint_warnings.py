"""A run is warned of an endpoint that the node on the endpoint's own machine refuses."""

from pathlib import Path

import httpx
import pytest

from farm.core.endpoint_url import EndpointUrl
from farm.gateway.endpoint_warnings import warn_of_refusals
from farm.policy.endpoint_access import EndpointAccess
from farm.scheduler.status import FarmStatus, NodeStatus
from tests.support.gateway_server import AS_OPERATOR, RecordingScheduler, running_gateway
from tests.support.redis_server import running_store

OWN = "http://localhost:8000/v1"


def farm_of(*node_ids: str) -> FarmStatus:
    nodes = [NodeStatus(node_id, "open", "", 4, 1, 0.2, 0.5, 0.1, 0.1) for node_id in node_ids]
    return FarmStatus(tuple(nodes), ())


@pytest.mark.parametrize(
    ("nodes", "then"),
    [
        (("head-012345",), "no episode gets a reply"),
        (("head-012345", "other-abcdef"), "episodes that start there run again on another node"),
    ],
)
async def test_endpoint_on_the_gateways_machine_gives_warning(nodes: tuple[str, ...], then: str) -> None:
    (warning,) = await warn_of_refusals(OWN, EndpointAccess(here=False), farm_of(*nodes))
    assert warning == (
        f"{OWN} is on the gateway's own machine, and the node there refuses it: {then}; "
        "list the endpoint in the policy_endpoints of that machine"
    )


async def test_endpoint_on_another_nodes_machine_gives_warning() -> None:
    status = farm_of("head-012345", "other-abcdef")
    (warning,) = await warn_of_refusals("http://other:8000/v1", EndpointAccess(), status)
    assert "is on the machine of other-abcdef, which refuses it unless its operator listed it: " in warning
    assert await warn_of_refusals("http://elsewhere.invalid:8000/v1", EndpointAccess(), status) == ()


async def test_admitted_endpoint_gives_no_warning() -> None:
    status = farm_of("head-012345", "other-abcdef")
    assert await warn_of_refusals(OWN, EndpointAccess(), status) == ()
    assert await warn_of_refusals(OWN, EndpointAccess((EndpointUrl.parse(OWN),), here=False), status) == ()


async def test_answer_to_a_new_run_holds_the_warning(tmp_path: Path) -> None:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    body = {"taskset": "demo", "policy": OWN, "group_size": 1}
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path, scheduler=RecordingScheduler(), host="0.0.0.0") as url,
        httpx.AsyncClient(base_url=url, headers=AS_OPERATOR) as http,
    ):
        answer = await http.post("/v1/runs", json=body)
    assert answer.status_code == 201, answer.text
    (warning,) = answer.json()["warnings"]
    assert warning.startswith(f"{OWN} is on the gateway's own machine")


async def test_named_policy_gives_the_warnings_of_its_endpoints(tmp_path: Path) -> None:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    scheduler = RecordingScheduler()
    scheduler.nodes = 2
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path, scheduler=scheduler) as url,
        httpx.AsyncClient(base_url=url, headers=AS_OPERATOR) as http,
    ):
        announced = await http.put("/v1/policies/loop", json={"version": 1, "endpoints": [OWN]})
        run = await http.post("/v1/runs", json={"taskset": "demo", "policy": "loop", "group_size": 1})
        direct = await http.post("/v1/runs", json={"taskset": "demo", "policy": OWN, "group_size": 1})
    for answer in (announced, run, direct):
        (warning,) = answer.json()["warnings"]
        assert warning.startswith(f"{OWN} is a loopback address, which is another machine on each of the 2 nodes; ")

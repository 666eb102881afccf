"""A task that names hosts: the policy reaches them while it works, and nobody does while it is judged."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from farm.core.rollout import check
from farm.episode import EpisodeEvent, EventKind, NodeServices, run_episode
from farm.policy.base import Reply
from farm.tasks.bundle import TaskBundle
from sandboxes import DockerRuntime
from sandboxes.egress import Grants
from tests.support.farm.episode_values import DONE, Scripted, call, create, order, say
from tests.support.farm.tiny import MENDED, task
from tests.support.sandboxes.origin import Origin, origin
from tests.support.sandboxes.proxying import HOST
from tests.support.services import needs_root

pytestmark = [pytest.mark.docker, needs_root]

FETCH = """
import sys, urllib.request
proxy = urllib.request.ProxyHandler({"http": "http://127.0.0.1:3128"})
print(urllib.request.build_opener(proxy).open(sys.argv[1]).read())
"""


@pytest.fixture
async def far() -> AsyncIterator[Origin]:
    async with origin() as server:
        yield server


def fetch(url: str) -> str:
    return f"no_proxy= NO_PROXY= python3 -c '{FETCH}' {url}"


def networked(image: str, far: Origin) -> TaskBundle:
    """The task whose policy may reach the origin, and whose tests try to; told of a proxy, they do not begin."""
    plain = task(image)
    tries = f"env | grep -iq _proxy && exit 1; {fetch(f'http://{HOST}:{far.port}/judged')}"
    verifier = replace(plain.task.verifier, command=f"{tries}; {plain.task.verifier.command}")
    return replace(plain, task=replace(plain.task, verifier=verifier, network=(f"{HOST}:{far.port}",)))


async def test_network_is_open_to_policy_but_not_grading(
    docker_runtime: DockerRuntime, tiny_image: str, far: Origin
) -> None:
    docker_runtime.granted = Grants.parse((f"{HOST}:{far.port}",))
    home = f"http://{HOST}:{far.port}"
    visits_when_judged: list[int] = []

    async def once_it_came_back() -> Reply:
        while len(far.visits) < 3:  # noqa: ASYNC110 - what runs on in the sandbox tells nobody
            await asyncio.sleep(0.01)
        return DONE

    def watch(event: EpisodeEvent) -> None:
        if event.kind is EventKind.GRADING:
            visits_when_judged.append(len(far.visits))

    policy = Scripted(
        say(
            call("bash", {"command": fetch(f"{home}/worked")}),
            call("bash", {"command": fetch("http://elsewhere.example/")}),
            call("bash", {"command": f"(while :; do {fetch(f'{home}/stays')}; done) > /dev/null 2>&1 &"}),
            create(MENDED, "tiny.py"),
        ),
        once_it_came_back,
    )
    bundle = networked(tiny_image, far)
    rollout = await run_episode(order(), bundle, policy, NodeServices("n1", docker_runtime), on_event=watch)
    check(rollout)
    assert rollout.reward == 1.0
    worked, refused, *_ = rollout.turns[0].tool_uses
    assert (worked.exit_code, refused.exit_code) == (0, 1)
    assert "403" in refused.result
    assert [len(far.visits)] == visits_when_judged
    assert {visit.request.target for visit in far.visits if visit.request} == {b"/worked", b"/stays"}
    assert rollout.metrics["egress_refused"] == 1
    assert rollout.metrics["egress_allowed"] == len(far.visits)
    assert f"to {HOST}:{far.port}." in str(policy.shown[0][0]["content"])

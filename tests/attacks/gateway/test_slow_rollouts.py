"""A policy, or the agent that it works in, fills the turns of its rollout, and somebody lists them."""

import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.support.attacks.called_threads import called_threads
from tests.support.gateway_server import AS_OPERATOR, running_gateway
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec

pytestmark = pytest.mark.redis


async def test_turns_are_read_and_written_beside_the_event_loop(tmp_path: Path) -> None:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    made = replace(make_rollout(), patch="p" * 1_000_000)
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path) as url,
        httpx.AsyncClient(base_url=url, timeout=60, headers=AS_OPERATOR) as http,
    ):
        await store.put_run(run_spec())
        await store.publish_scored(made)
        with called_threads("from_msgpack", "model_dump_json") as seen:
            answer = await http.get(f"/v1/rollouts/{made.rollout_id}/turns")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["patch"] == made.patch
    for name, threads in seen.items():
        assert threads, name
        assert threading.current_thread().name not in threads, name

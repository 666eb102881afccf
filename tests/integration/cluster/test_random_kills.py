"""A node agent that is killed again and again at random moments: every episode ends, and no command runs twice.

``FARMTEST_KILLS=50`` kills it 50 times instead of a few.
"""

import asyncio
import os
import random
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
import pytest

from farm.core.rollout import check
from farm.core.run import EpisodeLimits, PolicySpec, RunSpec
from farm.core.run_options.branching import Branching
from farm.store import Store
from farm.tasks import pack, task_ref
from sandboxes.toolserver.toolbox import Toolbox
from tests.integration.cluster.test_agent_restarts import sandboxes_of
from tests.support.farm import tiny
from tests.support.farm.agent_process import AgentProcess
from tests.support.farm.episode_values import EDITOR
from tests.support.model_server import ModelServer, Say, serving
from tests.support.redis_server import running_redis
from tests.support.services import needs_root
from tests.support.state_dirs import share

pytestmark = [pytest.mark.redis, pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900), needs_root]

KILLS = int(os.environ.get("FARMTEST_KILLS", "4"))
EPISODES, TURNS = 2, 10
LONGEST_LIFE_S = 2.5
EDIT = {"command": "str_replace", "path": "tiny.py", "old_str": "return 41", "new_str": "return 42"}
COUNT = "n=$(cat count 2>&- || echo 0); echo $((n + 1)) > count; echo {turn}:$n >> notes.txt; sleep 0.1"


async def reply(body: Mapping[str, Any]) -> Say:
    """Count up in a file, once a turn."""
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    if turn == TURNS:
        return Say("All done.")
    edit = ((EDITOR, EDIT),) if turn == 0 else ()
    return Say(f"Turn {turn}.", (*edit, ("bash", {"command": COUNT.format(turn=turn)})))


async def submit(
    farm: AgentProcess, store: Store, model: ModelServer, image: str, run_id: str, branching: Branching | None
) -> None:
    bundle = tiny.task(image)
    spec = RunSpec(
        run_id,
        (task_ref(bundle),),
        PolicySpec("openai", model.url, "tiny"),
        EPISODES,
        1,
        EpisodeLimits(max_turns=2 * TURNS),
        max_attempts=max(2, KILLS),
        branching=branching,
    )
    await store.put_bundle(bundle.task.digest, pack(bundle))
    await store.put_run(spec)
    await farm.shell.submit(run_id)


async def is_over(store: Store, run_id: str) -> bool:
    return all([await store.rollout(rollout_id) is not None for rollout_id in rollouts_of(run_id)])


def rollouts_of(run_id: str) -> list[str]:
    return [f"{run_id}-g000000-{index:03d}" for index in range(EPISODES)]


@pytest.mark.parametrize("branching", [None, Branching(EPISODES, (4,))], ids=["episodes", "tree"])
async def test_no_command_runs_twice_under_random_kills(
    docker_client: docker.DockerClient, toolbox: Toolbox, tiny_image: str, tmp_path: Path, branching: Branching | None
) -> None:
    seed = secrets.randbits(32)
    rng = random.Random(seed)
    state_dir = tmp_path / "state"
    share(state_dir)
    runs: list[str] = []
    resumed, branched = 0.0, 0
    async with running_redis(tmp_path / "redis") as redis, serving(ModelServer([reply] * 100_000)) as model:
        store = Store(redis.url)
        async with AgentProcess.running(store, redis.url, tmp_path, "oci") as farm:
            for _ in range(KILLS):
                if not runs or await is_over(store, runs[-1]):
                    runs.append(f"run-{len(runs)}")
                    await submit(farm, store, model, tiny_image, runs[-1], branching)
                model.asked.clear()
                async with asyncio.timeout(120):  # until an episode is at work, or the last is over
                    while not (model.asked.is_set() or await is_over(store, runs[-1])):  # noqa: ASYNC110 - Redis tells nobody
                        await asyncio.sleep(0.02)
                await asyncio.sleep(rng.uniform(0.0, LONGEST_LIFE_S))
                await farm.kill()
                await farm.start()
            async with asyncio.timeout(300):
                while not await is_over(store, runs[-1]):  # noqa: ASYNC110 - Redis tells nobody
                    await asyncio.sleep(0.05)
            for rollout_id in (name for run_id in runs for name in rollouts_of(run_id)):
                rollout, told = await store.rollout(rollout_id), await store.turns(rollout_id)
                assert rollout is not None, f"seed {seed}"
                assert told is not None
                check(rollout)
                noted = re.findall(r"^\+(\d+:\d+)$", told.patch, re.MULTILINE)
                assert noted == [f"{turn}:{turn}" for turn in range(TURNS)], f"{rollout_id}, seed {seed}"
                assert (rollout.reward, len(told.turns)) == (1.0, TURNS + 1), f"{rollout_id}, seed {seed}"
                resumed += rollout.metrics["resumed"]
                branched += bool(rollout.branches)
        await store.close()
    assert resumed > 0
    assert bool(branched) == bool(branching)
    assert sandboxes_of(docker_client, state_dir) == set()
    print(
        f"{KILLS} kills, {EPISODES * len(runs)} episodes, continued {resumed:g} times, {branched} branched, seed {seed}"
    )

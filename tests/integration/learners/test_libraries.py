"""Adapters against the types of the libraries, in the environment that has them."""

import json

import pytest

from farm.store import RunState
from tests.support.gateway_server import running_gateway
from tests.support.learner_env import QUIET
from tests.support.learner_values import small
from tests.support.plugin_env import ROOT, PluginEnv
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("learners")]
FOUND = {**QUIET, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("program", ["verifiers_traces.py", "verl_outputs.py", "trl_rows.py"])
async def test_adapter_makes_types_of_library(program: str, learner_env: PluginEnv) -> None:
    await learner_env.inside(program, **FOUND)


@pytest.mark.redis
async def test_loop_in_style_of_tinker_trains_until_run_is_drained(learner_env: PluginEnv) -> None:
    async with (
        running_store(learner_env.home) as store,
        running_gateway(store, learner_env.home, tokens={"operator": "o"}) as url,
    ):
        await store.put_run(run_spec(groups=5))
        for group in range(5):
            for index in range(2):
                await store.publish(small(make_rollout(group=group, index=index, reward=float(index), tokens=16)))
        await store.set_run_state("run-a", RunState.FINISHED)
        printed = await learner_env.inside("tinker_loop.py", url, FARM_TOKEN="o", **FOUND)
    assert json.loads(printed.splitlines()[-1]) == {"steps": 3, "versions": [5, 6, 7], "data": 10, "acked": 5}


@pytest.mark.redis
async def test_grpo_trainer_trains_on_groups_of_rollout_func(learner_env: PluginEnv) -> None:
    """In each group the reward of one member is unknown. It counts neither as 0 nor in the baseline."""
    async with (
        running_store(learner_env.home) as store,
        running_gateway(store, learner_env.home, tokens={"operator": "o"}) as url,
    ):
        await store.put_run(run_spec(groups=6, group_size=3))
        for group in range(6):
            for index, reward in enumerate((1.0, 0.0, None)):
                rollout = make_rollout(group=group, index=index, size=3, reward=reward, tokens=16, version=4)
                await store.publish(small(rollout))
        await store.set_run_state("run-a", RunState.FINISHED)
        printed = await learner_env.inside(
            "trl_rollout_func_run.py", url, learner_env.home / "work", FARM_TOKEN="o", **FOUND
        )
    report = json.loads(printed.splitlines()[-1])
    steps = [entry for entry in report["log"] if "reward" in entry]
    assert [entry["reward"] for entry in steps] == [0.5, 0.5]
    assert [entry["completions/mean_length"] for entry in steps] == [8.0, 8.0]
    assert (report["acked"], report["policy_version"]) == ([2, 4], 5)

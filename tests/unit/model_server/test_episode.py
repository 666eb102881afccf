"""Episodes of the farm with the served model: each sampled token of a rollout is reproduced by a fresh pass."""

import asyncio

import pytest

from farm.core.rollout import Rollout, check
from farm.core.run import EpisodeLimits, PolicySpec
from farm.episode import NodeServices, run_episode
from farm.policy.openai_endpoint import OpenAIEndpoint
from tests.support.farm.episode_values import fake, order, task
from tests.support.farm.model_calls import segment_mismatches, until
from tests.support.farm.routes import openai_policy
from tests.support.farm.served_model import ServedModel, serving

EPISODES = 12
MAX_TURNS = 5


async def run_one(endpoint: OpenAIEndpoint, seed: int) -> Rollout:
    sampling = {"max_tokens": 300, "seed": seed}
    spec = PolicySpec(kind="openai", endpoint=endpoint.url, sampling_params=sampling)
    policy = openai_policy(spec, endpoint, seed=seed)
    bundle = task(tools=("bash", "submit"))
    rollout = await run_episode(order(EpisodeLimits(max_turns=MAX_TURNS)), bundle, policy, NodeServices("n1", fake()))
    check(rollout)
    return rollout


async def episodes(model: ServedModel) -> list[Rollout]:
    """Run episodes at once. Change the weights once they sample, and again when they sample with the new ones."""
    endpoint = OpenAIEndpoint(f"{model.url}/v1")
    try:
        running = asyncio.gather(*(run_one(endpoint, seed) for seed in range(EPISODES)))
        for version in (2, 3):
            before = model.engine.metrics.generated_tokens
            await until(lambda: model.engine.metrics.generated_tokens >= before + 100)  # noqa: B023 - used at once
            await model.engine.set_version(version)
        return await running
    finally:
        await endpoint.close()


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
async def test_every_token_of_episodes_is_reproduced(dialect: str) -> None:
    async with serving(dialect) as model:
        rollouts = await episodes(model)
    assert all(rollout.trainable for rollout in rollouts)
    segments = [segment for rollout in rollouts for segment in rollout.segments]
    assert sum(segment_mismatches(segment) for segment in segments) == 0
    assert {span.version for segment in segments for span in segment.weight_versions} == {1, 2, 3}
    assert max(len(segment.turns) for segment in segments) > 1
    assert model.engine.metrics.prefix_hit_tokens > 0

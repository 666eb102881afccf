"""A policy ends a task of steps after the easy one; a naive mean over the steps that began pays it in full."""

from collections.abc import Sequence
from typing import Any

import pytest

from farm.core.rollout import Rollout, StopReason
from farm.core.run import EpisodeLimits
from farm.core.task import StepReward
from farm.episode import NodeServices, run_episode
from sandboxes.errors import LossCause, SandboxGone
from sandboxes.testing.shell import FakeProcess
from tests.support.farm.episode_values import DONE, Scripted, call, fake, order, say
from tests.unit.episode.test_steps import in_steps, play, ready, score, steps_of, write

EASY = (write(0, 1), DONE)
FAILED_HONESTLY = (*EASY, DONE, DONE)
FAILED_REWARD = pytest.approx((1 + 0.25 + 0.25) / 3)
IDLE = say(call("bash", {"command": "true"}))

ABANDONED: dict[str, tuple[Sequence[Any], EpisodeLimits]] = {
    "idles until max_turns": ((*EASY, IDLE, IDLE), EpisodeLimits(max_turns=4)),
    "max_turns at the end of the easy step": ((write(0, 1), IDLE), EpisodeLimits(max_turns=2)),
    "spends its tokens": (
        (write(0, 1), say(call("bash", {"command": "true"}), completion_tokens=1000)),
        EpisodeLimits(max_tokens=100),
    ),
    "fills its context": ((write(0, 1), say(stop=StopReason.CONTEXT_LENGTH)), EpisodeLimits()),
    "has its reply cut": ((write(0, 1), say(finish_reason="length")), EpisodeLimits()),
}


def naive(rollout: Rollout) -> float:
    """Return the mean over the steps that began."""
    begun = int(rollout.reward_components["steps_begun"])
    return sum(steps_of(rollout)[:begun]) / begun


@pytest.mark.parametrize("way", ABANDONED)
async def test_steps_not_begun_count_zero(way: str) -> None:
    script, limits = ABANDONED[way]
    honest, _ = await play(in_steps(None, None, None), *FAILED_HONESTLY)
    assert honest.reward == naive(honest) == FAILED_REWARD
    rollout, _ = await play(in_steps(None, None, None), *script, limits=limits)
    assert rollout.reward_components["steps_begun"] < 3
    assert naive(rollout) > naive(honest)
    assert rollout.reward is not None
    assert honest.reward is not None
    assert rollout.reward < honest.reward
    assert "count 0" in rollout.reason


async def test_final_step_not_begun_is_worth_nothing() -> None:
    script, limits = ABANDONED["max_turns at the end of the easy step"]
    rollout, _ = await play(in_steps(None, None, step_reward=StepReward.FINAL), *script, limits=limits)
    assert naive(rollout) == 1.0
    assert rollout.reward == 0.0


async def test_min_reward_stop_counts_only_begun_steps() -> None:
    rollout, _ = await play(in_steps(0.75, None, None), write(0, 0.5), DONE)
    assert (rollout.reward, steps_of(rollout)) == (0.5, [0.5])


async def test_lost_work_below_min_reward_counts_all_steps() -> None:
    async def dies(process: FakeProcess) -> int:
        raise SandboxGone("it ended by itself", by=LossCause.INSIDE)

    runtime = fake(programs={"score": score, "ready": ready, "die": dies})
    policy = Scripted(*EASY, say(call("bash", {"command": "die"})))
    rollout = await run_episode(order(), in_steps(None, 0.5, None), policy, NodeServices("n1", runtime))
    assert rollout.reward == pytest.approx(1 / 3)

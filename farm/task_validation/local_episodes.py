"""Whole episodes with known policies: for tasks that no change alone tells the worth of."""

import asyncio
from collections.abc import Mapping

from farm.core.rollout import Rollout, Split
from farm.core.run import EpisodeAssignment, EpisodeLimits, PolicySpec, group_id, rollout_id
from farm.episode import NodeServices, run_episode
from farm.policy import EndpointPool, make_policy
from farm.task_validation.cheats import earned_reward_message
from farm.task_validation.gradings import gather_all
from farm.task_validation.result import Condition, Reason, ValidationResult
from farm.tasks import TaskBundle, task_ref
from sandboxes.interface import Runtime

REPETITIONS = 3
_RUN = "validate"


async def judge_by_episodes(
    bundle: TaskBundle, runtime: Runtime, turns: asyncio.Semaphore, finding: ValidationResult
) -> None:
    """Nothing done and the known answer, REPETITIONS times each."""
    for _ in range(REPETITIONS):
        for kind, rewards, right in (("nop", finding.nop, 0.0), ("oracle", finding.gold, 1.0)):
            async with turns:
                rollout = await run_local_episode(kind, bundle, runtime)
            finding.grade_s = max(finding.grade_s, rollout.metrics.get("total_s", 0.0))
            if rollout.reward is not None:
                rewards.append(rollout.reward)
            if rollout.reward != right:
                reason = Reason.NOTHING if kind == "nop" else Reason.GOLD
                finding.refuse(reason, f"{kind} is judged {rollout.reward}, not {right:g}: {_why(rollout)}")
    finding.how = [Condition.PLAIN] * len(finding.gold)
    finding.notes.append("judged by whole episodes, as they are: neither in random order nor under load")


async def cheat_by_episodes(
    cheats: Mapping[str, TaskBundle], runtime: Runtime, turns: asyncio.Semaphore, finding: ValidationResult
) -> None:
    """``cheats``: by what they do, the task with a solution that is none. Each must earn nothing."""

    async def cheat(bundle: TaskBundle) -> Rollout:
        async with turns:
            return await run_local_episode("oracle", bundle, runtime)

    rollouts = await gather_all(*map(cheat, cheats.values()))
    for (what, bundle), rollout in zip(cheats.items(), rollouts, strict=True):
        if rollout.reward is None:
            finding.notes.append(f"a cheat could not be tried: {what}: {_why(rollout)}")
        elif rollout.reward:
            finding.refuse(Reason.CHEAT, earned_reward_message(what, rollout.reward, bundle.task.verifier))


async def run_local_episode(kind: str, bundle: TaskBundle, runtime: Runtime) -> Rollout:
    """An episode with the policy ``kind``, through the tools that any policy has."""
    group = group_id(_RUN, 0)
    spec = PolicySpec(kind)
    order = EpisodeAssignment(
        rollout_id=rollout_id(group, 0),
        attempt=0,
        final=True,
        run_id=_RUN,
        group_id=group,
        group_index=0,
        group_size=1,
        task=task_ref(bundle),
        split=Split.EVAL,
        policy=spec,
        limits=EpisodeLimits(),
        seed=0,
    )
    policy = make_policy(spec, bundle, seed=0, endpoints=EndpointPool())
    try:
        return await run_episode(order, bundle, policy, NodeServices(_RUN, runtime))
    finally:
        await policy.close()


def _why(rollout: Rollout) -> str:
    return rollout.error.message if rollout.error else rollout.reason

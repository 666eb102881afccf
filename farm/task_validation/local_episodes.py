"""Run whole episodes with the policies ``nop`` and ``oracle``, for tasks that cannot be graded from a change alone."""

import asyncio
from collections.abc import Mapping

from farm.core.rollout import Rollout, Split
from farm.core.run import EpisodeAssignment, EpisodeLimits, PolicySpec, group_id, rollout_id
from farm.episode import NodeServices, run_episode
from farm.policy import EndpointPool, PolicyRoutes, make_policy
from farm.task_validation.cheats import earned_reward_message
from farm.task_validation.gradings import gather_all
from farm.task_validation.result import Condition, Reason, ValidationResult
from farm.tasks import TaskBundle, task_ref
from sandboxes.interface import Runtime

REPETITIONS = 3
_RUN = "validate"


async def judge_by_episodes(
    bundle: TaskBundle, runtime: Runtime, turns: asyncio.Semaphore, result: ValidationResult
) -> None:
    """Run REPETITIONS episodes that do nothing and as many with the gold solution, and record their rewards."""
    for _ in range(REPETITIONS):
        for policy_kind, rewards, expected in (("nop", result.nop, 0.0), ("oracle", result.gold, 1.0)):
            async with turns:
                rollout = await run_local_episode(policy_kind, bundle, runtime)
            result.grade_s = max(result.grade_s, rollout.metrics.get("total_s", 0.0))
            if rollout.reward is not None:
                rewards.append(rollout.reward)
            if rollout.reward != expected:
                reason = Reason.NOTHING if policy_kind == "nop" else Reason.GOLD
                result.refuse(reason, f"{policy_kind} is judged {rollout.reward}, not {expected:g}: {_reason(rollout)}")
    result.how = [Condition.PLAIN] * len(result.gold)
    result.notes.append("judged by whole episodes, as they are: neither in random order nor under load")


async def cheat_by_episodes(
    cheats: Mapping[str, TaskBundle], runtime: Runtime, turns: asyncio.Semaphore, result: ValidationResult
) -> None:
    """Run each cheat as the solution of an episode; it must earn nothing. ``cheats``: tasks by description."""

    async def cheat(bundle: TaskBundle) -> Rollout:
        async with turns:
            return await run_local_episode("oracle", bundle, runtime)

    rollouts = await gather_all(*map(cheat, cheats.values()))
    for (description, bundle), rollout in zip(cheats.items(), rollouts, strict=True):
        if rollout.reward is None:
            result.notes.append(f"a cheat could not be tried: {description}: {_reason(rollout)}")
        elif rollout.reward:
            result.refuse(Reason.CHEAT, earned_reward_message(description, rollout.reward, bundle.task.verifier))


async def run_local_episode(policy_kind: str, bundle: TaskBundle, runtime: Runtime) -> Rollout:
    """Run an episode with the policy ``policy_kind``, through the tools that any policy has."""
    group = group_id(_RUN, 0)
    spec = PolicySpec(policy_kind)
    assignment = EpisodeAssignment(
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
    policy = make_policy(spec, bundle, seed=0, routes=PolicyRoutes(EndpointPool()))
    try:
        return await run_episode(assignment, bundle, policy, NodeServices(_RUN, runtime))
    finally:
        await policy.close()


def _reason(rollout: Rollout) -> str:
    return rollout.error.message if rollout.error else rollout.reason

"""Samples of a farm as verl's ``AgentLoopOutput``."""

from collections.abc import Iterable
from typing import Any

from farm.learners.samples import Sample
from farm.plugins.requirement import required

with required("verl"):
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput


def agent_loop_outputs(samples: Iterable[Sample]) -> list[Any]:
    """Return an ``AgentLoopOutput`` for each sample.

    ``extra_fields`` has the advantage, the ids of rollout and group, and the oldest and newest weights as
    ``min_global_steps`` and ``max_global_steps``, which verl's asynchronous trainers read.
    """
    return [_agent_loop_output(sample) for sample in samples]


def _agent_loop_output(sample: Sample) -> Any:
    return AgentLoopOutput(
        prompt_ids=sample.prompt_ids,
        response_ids=sample.response_ids,
        response_mask=sample.response_mask,
        response_logprobs=sample.response_logprobs,
        reward_score=sample.reward,
        num_turns=len(sample.segment.turns),
        metrics=AgentLoopMetrics(),
        extra_fields={
            "advantage": sample.advantage,
            "rollout_id": sample.rollout.rollout_id,
            "group_id": sample.rollout.group_id,
            "segment_index": sample.segment_index,
            "min_global_steps": sample.oldest_version,
            "max_global_steps": sample.newest_version,
        },
    )

"""Groups of a farm as traces of verifiers, which prime-rl turns into training samples."""

from typing import Any

from farm.core.rollout import Rollout, Status
from farm.learners.samples import GroupSamples, Sample
from farm.plugins.requirement import required

with required("verifiers"):
    from verifiers.v1.configs.agent import WireAgentConfig
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.state import State
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, Reward, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, UserMessage

REWARD = "farm"


def group_traces(group: GroupSamples) -> list[Any]:
    """Return a trace for each rollout of a group that has samples, in the order of its rollouts.

    Each segment is a branch: a path from a root to a leaf. A node has the tokens of one reply, or those between two
    replies. The advantage is assigned to the sampled tokens. Messages are empty, because a rollout has only tokens.
    """
    by_rollout: dict[str, list[Sample]] = {}
    for sample in group.samples:
        by_rollout.setdefault(sample.rollout.rollout_id, []).append(sample)
    return [_trace(samples[0].rollout, samples) for samples in by_rollout.values()]


def _trace(rollout: Rollout, samples: list[Sample]) -> Any:
    nodes: list[Any] = []
    for sample in samples:
        _add_branch(nodes, sample)
    task = TraceTask(type="FarmTask", data=WireTaskData(id=rollout.task_id, name=rollout.task_id), key=rollout.task_id)
    return Trace[WireTaskData, State, WireAgentConfig](
        id=rollout.rollout_id,
        task=task,
        agent=AgentInfo(config=WireAgentConfig(model=rollout.model or None)),
        nodes=nodes,
        rewards={REWARD: Reward(score=samples[0].reward)},
        metrics=dict(rollout.metrics) | dict(rollout.reward_components),
        info={
            "group_id": rollout.group_id,
            "policy": rollout.policy,
            "policy_version_min": rollout.policy_version_min,
            "policy_version_max": rollout.policy_version_max,
        },
        is_completed=True,
        ok=rollout.status in (Status.COMPLETED, Status.TRUNCATED),
        stop_condition=rollout.stop_reason.value,
    )


def _add_branch(nodes: list[Any], sample: Sample) -> None:
    """Add the nodes of a segment: for each run of equal mask one node, below the node before it."""
    segment, parent, start = sample.segment, None, 0
    while start < len(segment.token_ids):
        sampled = segment.loss_mask[start]
        end = segment.loss_mask.find(b"\x00" if sampled else b"\x01", start)
        end = len(segment.token_ids) if end < 0 else end
        nodes.append(
            MessageNode(
                parent=parent,
                message=AssistantMessage(content="") if sampled else UserMessage(content=""),
                sampled=bool(sampled),
                token_ids=segment.token_ids[start:end].tolist(),
                mask=[bool(sampled)] * (end - start),
                logprobs=segment.logprobs[start:end].tolist() if sampled else [],
                advantages=[sample.advantage] * (end - start) if sampled else None,
            )
        )
        parent, start = len(nodes) - 1, end

"""Advantages for a group whose rollouts branch: each token gets the advantage of its own part of the tree."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from farm.core.rollout import Rollout

Advantages = list[list[float]]
"""The advantage of each token of a rollout, by segment."""


def tree_advantages(group: Sequence[Rollout]) -> dict[str, Advantages]:
    """Return the advantages of all judged rollouts of a group, by rollout id.

    The value of a node is the mean reward of the rollouts below it; the value of the root is that of the group. A part
    of a rollout, from one branch point to the next, has the advantage by which it changed the value.
    """
    rewards = {rollout.rollout_id: rollout.reward for rollout in group if rollout.reward is not None}
    judged = [rollout for rollout in group if rollout.rollout_id in rewards]
    nodes: dict[str, list[float]] = {}
    for rollout in judged:
        for point in rollout.branches:
            nodes.setdefault(point.node, []).append(rewards[rollout.rollout_id])
    root = fmean(rewards.values()) if rewards else 0.0
    advantages = {}
    for rollout in judged:
        values = [root, *(fmean(nodes[point.node]) for point in rollout.branches), rewards[rollout.rollout_id]]
        places = [(point.segment, point.token) for point in rollout.branches]
        gains = [after - before for before, after in pairwise(values)]
        advantages[rollout.rollout_id] = [
            [
                gains[sum(place <= (number, token) for place in places)] * mask
                for token, mask in enumerate(segment.loss_mask)
            ]
            for number, segment in enumerate(rollout.segments)
        ]
    return advantages

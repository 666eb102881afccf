"""Groups of rollouts made up for tests of adapters, among them one rollout with two segments."""

from array import array
from dataclasses import replace

from farm.client import Group
from farm.core.rollout import Rollout, Segment, SegmentKind, SegmentTurn, WeightSpan
from tests.support.rollouts import make_rollout

FIRST = Segment(
    token_ids=array("i", [10, 11, 12, 13, 14, 15]),
    loss_mask=bytes([0, 0, 1, 1, 0, 1]),
    logprobs=array("f", [0.0, 0.0, -0.5, -0.25, 0.0, -1.0]),
    weight_versions=(WeightSpan(7, 2, 4), WeightSpan(8, 5, 6)),
    prompt_length=2,
    turns=(SegmentTurn(2, 4, "tool_calls", "a"), SegmentTurn(5, 6, "stop", "b")),
)
SECOND = Segment(
    token_ids=array("i", [10, 20, 21]),
    loss_mask=bytes([0, 0, 1]),
    logprobs=array("f", [0.0, 0.0, -2.0]),
    weight_versions=(WeightSpan(9, 2, 3),),
    prompt_length=2,
    turns=(SegmentTurn(2, 3, "stop", "c"),),
    kind=SegmentKind.COMPACTED,
)


def mixed_group() -> Group:
    """Return a group of five: two segments and the reward 1, one segment and the reward 0, one segment and the reward
    0.5, not judged, judged but untrainable.
    """
    rollouts = [make_rollout(index=index, size=5, reward=reward, tokens=8, version=7) for index, reward in REWARDS]
    two_segments = replace(rollouts[0], segments=(FIRST, SECOND), policy_version_min=7, policy_version_max=9)
    untrainable = replace(rollouts[4], segments=(), trainable=False)
    return group_of(two_segments, *rollouts[1:4], untrainable)


REWARDS = ((0, 1.0), (1, 0.0), (2, 0.5), (3, None), (4, 1.0))


def group_of(*rollouts: Rollout) -> Group:
    tokens = sum(len(segment.token_ids) for rollout in rollouts for segment in rollout.segments)
    return Group(rollouts[0].group_id, 1, tokens, False, 7, rollouts)


def small(rollout: Rollout, vocabulary: int = 20) -> Rollout:
    """Return the rollout with token ids below ``vocabulary``."""
    segments = tuple(
        replace(segment, token_ids=array("i", (token % vocabulary for token in segment.token_ids)))
        for segment in rollout.segments
    )
    return replace(rollout, segments=segments)

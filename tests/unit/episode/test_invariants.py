"""A record that breaks a promise to the learner is refused before it is published."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from farm.core.rollout import (
    Failure,
    InvalidRollout,
    Origin,
    Rollout,
    Segment,
    SegmentKind,
    SegmentTurn,
    Split,
    Status,
    StopReason,
    WeightSpan,
    check,
)

SEGMENT = Segment(
    token_ids=array("i", [5, 6, 7, 8, 9]),
    loss_mask=b"\x00\x00\x01\x01\x00",
    logprobs=array("f", [0, 0, -0.5, -0.25, 0]),
    weight_versions=(WeightSpan(3, 2, 4),),
    prompt_length=2,
    turns=(SegmentTurn(2, 4, "stop", "r1"),),
)
ROLLOUT = Rollout(
    rollout_id="r",
    attempt=1,
    run_id="run",
    group_id="g",
    group_index=0,
    group_size=2,
    task_id="t",
    task_digest="d",
    image_digest="i",
    split=Split.TRAIN,
    status=Status.COMPLETED,
    stop_reason=StopReason.AGENT_DONE,
    error=None,
    reward=1.0,
    reward_components={"resolved": 1.0},
    reward_version="1",
    metrics={},
    trainable=True,
    policy="p",
    policy_version_min=3,
    policy_version_max=3,
    sampling_params={},
    segments=(SEGMENT,),
    farm_version="0",
    node="n",
    created_at=0.0,
    finished_at=1.0,
)
FAILURE = Failure(Origin.INFRA, "BootError", "no answer", True)


def test_valid_record_passes() -> None:
    check(ROLLOUT)
    check(replace(ROLLOUT, trainable=False, segments=(), reward=0.0))
    check(replace(ROLLOUT, status=Status.FAILED, error=FAILURE, reward=None, trainable=False, segments=()))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"group_index": 2 * ROLLOUT.group_size}, "outside a group"),
        ({"reward": float("nan")}, "finite"),
        ({"status": Status.FAILED, "error": FAILURE}, "failed rollout carries the reward"),
        ({"status": Status.FAILED, "reward": None}, "does not agree"),
        ({"error": FAILURE}, "does not agree"),
        ({"reward": None}, "without a reward"),
        ({"segments": ()}, "0 segments"),
        ({"trainable": False}, "1 segments"),
    ],
)
def test_invalid_record_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRollout, match=said):
        check(replace(ROLLOUT, **changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"loss_mask": b"\x00\x00\x01\x01"}, "4 loss_mask"),
        ({"logprobs": array("f", [0, 0, float("inf"), 0, 0])}, "logprob inf"),
        ({"logprobs": array("f", [0, 0, -1, -1, -1])}, "masked token 4"),
        ({"loss_mask": b"\x00\x00\x01\x00\x00"}, "not exactly the sampled"),
        ({"loss_mask": b"\x01\x00\x01\x01\x00"}, "covers the prompt"),
        ({"prompt_length": 9}, "prompt_length 9"),
        ({"turns": (SegmentTurn(2, 4, "stop", "a"), SegmentTurn(3, 4, "stop", "b"))}, "overlaps"),
        ({"turns": (SegmentTurn(2, 6, "stop", "a"),)}, "of 5 tokens"),
        ({"weight_versions": (WeightSpan(1, 4, 4),)}, "weight span"),
        ({"kind": SegmentKind.COMPACTED}, "not main"),
    ],
)
def test_invalid_segment_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRollout, match=said):
        check(replace(ROLLOUT, segments=(replace(SEGMENT, **changed),)))

"""Rollouts and runs made up for tests of delivery."""

import random
from array import array
from dataclasses import replace

from farm.core.rollout import (
    Failure,
    Origin,
    Rollout,
    Segment,
    SegmentTurn,
    Split,
    Status,
    StopReason,
    ToolUse,
    Turn,
    WeightSpan,
)
from farm.core.run import EpisodeLimits, PolicySpec, RunSpec, TaskRef, group_id, rollout_id
from farm.core.run_options.groups import DEFAULT_GROUP_OPTIONS, GroupOptions

TASK = TaskRef(id="demo/one", digest="d" * 64, image="farm-task/one:0", memory_mib=512, cpus=1.0)


def run_spec(
    run_id: str = "run-a",
    *,
    groups: int = 2,
    group_size: int = 2,
    created_at: float = 1.0,
    policy: str = "",
    options: GroupOptions = DEFAULT_GROUP_OPTIONS,
    split: Split = Split.TRAIN,
) -> RunSpec:
    """``policy`` is the name of a policy; "" means the oracle."""
    played_by = PolicySpec("openai", policy=policy) if policy else PolicySpec("oracle")
    limits = EpisodeLimits()
    return RunSpec(
        run_id, (TASK,), played_by, group_size, groups, limits, split, created_at=created_at, options=options
    )


def segment(tokens: int, seed: int = 0, version: int = 3) -> Segment:
    rng = random.Random(seed)
    prompt = tokens // 4
    return Segment(
        token_ids=array("i", (rng.randrange(150_000) for _ in range(tokens))),
        loss_mask=bytes(prompt) + b"\x01" * (tokens - prompt),
        logprobs=array("f", [0.0] * prompt + [-rng.random() for _ in range(tokens - prompt)]),
        weight_versions=(WeightSpan(version, prompt, tokens),),
        prompt_length=prompt,
        turns=(SegmentTurn(prompt, tokens, "stop", f"req-{seed}"),),
    )


def make_rollout(
    run_id: str = "run-a",
    group: int = 0,
    index: int = 0,
    *,
    size: int = 2,
    reward: float | None = 1.0,
    attempt: int = 1,
    tokens: int = 0,
    version: int | None = None,
) -> Rollout:
    name = group_id(run_id, group)
    rollout = Rollout(
        rollout_id=rollout_id(name, index),
        attempt=attempt,
        run_id=run_id,
        group_id=name,
        group_index=index,
        group_size=size,
        task_id=TASK.id,
        task_digest=TASK.digest,
        image_digest="sha256:" + "e" * 64,
        split=Split.TRAIN,
        status=Status.COMPLETED,
        stop_reason=StopReason.AGENT_DONE,
        error=None,
        reward=reward,
        reward_components={"resolved": reward or 0.0},
        reward_version="tests-1",
        metrics={"turns": 1.0, "agent_s": 0.25},
        trainable=bool(tokens) and reward is not None,
        policy="oracle",
        policy_version_min=version,
        policy_version_max=version,
        sampling_params={"temperature": 1.0, "top_k": 5, "greedy": False, "stop": "x"},
        segments=(segment(tokens, index, version or 0),) if tokens and reward is not None else (),
        farm_version="0",
        node="node-1",
        created_at=1.5,
        finished_at=2.5,
        turns=(
            Turn(
                0,
                "let me look",
                None,
                (ToolUse("c1", "bash", "{}", "ok\n", False, None, 0, False, False, 0.1),),
                "tool_calls",
                "req",
                10,
                5,
                1.6,
                0.2,
                0.1,
            ),
        ),
        messages_head=({"role": "user", "content": "do it"},),
        patch="diff --git a/x b/x\n",
    )
    if reward is None:
        failure = Failure(Origin.INFRA, "SandboxGone", "the tool server no longer answers", True)
        return replace(rollout, status=Status.FAILED, stop_reason=StopReason.ERROR, error=failure, reward_components={})
    return rollout

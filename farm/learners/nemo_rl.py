"""Samples of a farm as data of NeMo RL, with their messages as its rollouts leave them."""

from collections.abc import Iterable
from typing import Any

from farm.learners.samples import Sample
from farm.plugins.requirement import required

with required("nemo-rl", source="github.com/NVIDIA-NeMo/RL"):
    import torch


def data(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """Return a ``DatumSpec`` for each sample, with the reward of its rollout as ``total_reward``.

    A message of the role ``assistant`` has ``generation_logprobs``, so NeMo RL takes its tokens for sampled ones. The
    content of the messages is empty, because a rollout has only tokens.
    """
    return [_datum(index, sample) for index, sample in enumerate(samples)]


def _datum(index: int, sample: Sample) -> dict[str, Any]:
    return {
        "message_log": _message_log(sample),
        "length": len(sample.segment.token_ids),
        "extra_env_info": {
            "rollout_id": sample.rollout.rollout_id,
            "group_id": sample.rollout.group_id,
            "advantage": sample.advantage,
            "weight_version": sample.oldest_version,
        },
        "loss_multiplier": 1.0,
        "idx": index,
        "task_name": sample.rollout.task_id,
        "total_reward": sample.reward,
    }


def _message_log(sample: Sample) -> list[dict[str, Any]]:
    """Return a message for each run of tokens that were sampled, or were not."""
    segment, start = sample.segment, 0
    log: list[dict[str, Any]] = []
    while start < len(segment.token_ids):
        sampled = segment.loss_mask[start]
        end = segment.loss_mask.find(b"\x00" if sampled else b"\x01", start)
        end = len(segment.token_ids) if end < 0 else end
        tokens = torch.tensor(segment.token_ids[start:end].tolist(), dtype=torch.int64)
        message: dict[str, Any] = {"role": "assistant" if sampled else "user", "content": "", "token_ids": tokens}
        if sampled:
            message["generation_logprobs"] = torch.tensor(segment.logprobs[start:end].tolist(), dtype=torch.float32)
        log.append(message)
        start = end
    return log

"""Samples of a farm as prime-rl's ``TrainingSample``, which its packer turns into micro-batches."""

from collections.abc import Iterable
from typing import Any

from farm.learners.samples import Sample
from farm.plugins.requirement import required

with required("prime-rl", source="github.com/PrimeIntellect-ai/prime-rl"):
    from prime_rl.transports.rollouts.types import TrainingSample


def training_samples(samples: Iterable[Sample], env_name: str = "farm") -> list[Any]:
    """Return a ``TrainingSample`` for each sample. The advantage is that of each sampled token, and 0 elsewhere.

    The temperature is that of the run's ``sampling_params``, or 1.
    """
    return [_training_sample(sample, env_name) for sample in samples]


def _training_sample(sample: Sample, env_name: str) -> Any:
    segment = sample.segment
    temperature = float(sample.rollout.sampling_params.get("temperature", 1.0))
    return TrainingSample(
        token_ids=segment.token_ids.tolist(),
        mask=[bool(sampled) for sampled in segment.loss_mask],
        logprobs=segment.logprobs.tolist(),
        temperatures=[temperature] * len(segment.token_ids),
        env_name=env_name,
        advantages=[sample.advantage if sampled else 0.0 for sampled in segment.loss_mask],
    )

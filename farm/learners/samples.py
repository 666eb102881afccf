"""Training samples of a group: one for each segment of each rollout that was judged and is trainable."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from farm.client import Group
from farm.core.rollout import Rollout, Segment

Advantages = Callable[[Sequence[float]], Sequence[float]]
"""Computes one advantage for each reward of a group."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A segment to train on. All segments of a rollout have its reward and its advantage.

    ``segment_index`` counts the segments of the rollout from 0.
    """

    rollout: Rollout
    segment: Segment
    segment_index: int
    reward: float
    advantage: float

    @property
    def prompt_ids(self) -> list[int]:
        """Return the tokens before the first sampled one."""
        return self.segment.token_ids[: self.segment.prompt_length].tolist()

    @property
    def response_ids(self) -> list[int]:
        """Return the sampled tokens and those between them, for example results of tools."""
        return self.segment.token_ids[self.segment.prompt_length :].tolist()

    @property
    def response_mask(self) -> list[int]:
        return list(self.segment.loss_mask[self.segment.prompt_length :])

    @property
    def response_logprobs(self) -> list[float]:
        return self.segment.logprobs[self.segment.prompt_length :].tolist()

    @property
    def oldest_version(self) -> int | None:
        """Return the oldest weights of the segment's tokens, or those of the rollout if the segment names none."""
        return min((span.version for span in self.segment.weight_versions), default=self.rollout.policy_version_min)

    @property
    def newest_version(self) -> int | None:
        """Return the newest weights of the segment's tokens, or those of the rollout if the segment names none."""
        return max((span.version for span in self.segment.weight_versions), default=self.rollout.policy_version_max)

    def token_versions(self, unsampled: int = -1) -> list[int]:
        """Return the weights behind each token. Tokens that were not sampled have ``unsampled``.

        A sampled token without a version has the oldest version of the segment, or ``unsampled`` if there is none.
        """
        oldest = self.oldest_version
        unnamed = unsampled if oldest is None else oldest
        versions = [unnamed if sampled else unsampled for sampled in self.segment.loss_mask]
        for span in self.segment.weight_versions:
            for position in range(span.start, span.end):
                if self.segment.loss_mask[position]:
                    versions[position] = span.version
        return versions


@dataclass(frozen=True, slots=True)
class GroupSamples:
    """The training samples of a group. ``left_out`` counts the rollouts without samples, by reason.

    ``rewards`` are those of the rollouts with samples, which are also the baseline.
    """

    group: Group
    samples: tuple[Sample, ...]
    rewards: tuple[float, ...]
    left_out: Mapping[str, int]


def normalised(rewards: Sequence[float]) -> list[float]:
    """Return (reward - mean) / deviation of each reward, and zeros if all are equal."""
    deviation = statistics.pstdev(rewards)
    return [difference / (deviation or 1.0) for difference in centred(rewards)]


def centred(rewards: Sequence[float]) -> list[float]:
    """Return reward - mean of each reward."""
    mean = statistics.fmean(rewards)
    return [reward - mean for reward in rewards]


def group_samples(group: Group, advantages: Advantages = normalised) -> GroupSamples:
    """Return the training samples of a group, in the order of its rollouts.

    A rollout that was not judged (``not_judged``) or is not trainable (``untrainable``) has no sample, and its reward
    is not in the baseline. A segment without sampled tokens has no sample either.
    """
    reasons = [_reason_to_leave_out(rollout) for rollout in group.rollouts]
    trained = [rollout for rollout, reason in zip(group.rollouts, reasons, strict=True) if not reason]
    rewards = [rollout.reward for rollout in trained if rollout.reward is not None]
    samples = [
        Sample(rollout, segment, index, reward, advantage)
        for rollout, reward, advantage in zip(trained, rewards, advantages(rewards) if rewards else (), strict=True)
        for index, segment in enumerate(rollout.segments)
        if any(segment.loss_mask)
    ]
    return GroupSamples(group, tuple(samples), tuple(rewards), Counter(reason for reason in reasons if reason))


def _reason_to_leave_out(rollout: Rollout) -> str:
    if rollout.reward is None:
        return "not_judged"
    return "" if rollout.trainable and any(any(segment.loss_mask) for segment in rollout.segments) else "untrainable"

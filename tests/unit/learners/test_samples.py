"""Training samples of groups."""

from dataclasses import replace

import pytest

from farm.learners import centred, group_samples, normalised
from tests.support.learner_values import FIRST, SECOND, group_of, mixed_group
from tests.support.rollouts import make_rollout


def test_each_segment_becomes_one_sample() -> None:
    made = group_samples(mixed_group())
    assert [(sample.rollout.group_index, sample.segment_index) for sample in made.samples] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
    ]
    assert [sample.segment for sample in made.samples[:2]] == [FIRST, SECOND]
    assert [sample.reward for sample in made.samples] == [1.0, 1.0, 0.0, 0.5]


def test_unjudged_and_untrainable_rollouts_are_left_out_of_baseline() -> None:
    made = group_samples(mixed_group(), centred)
    assert made.rewards == (1.0, 0.0, 0.5)
    assert [sample.advantage for sample in made.samples] == [0.5, 0.5, -0.5, 0.0]
    assert made.left_out == {"not_judged": 1, "untrainable": 1}


def test_segment_without_sampled_tokens_has_no_sample() -> None:
    unsampled = replace(FIRST, loss_mask=bytes(6), weight_versions=(), turns=())
    rollout = make_rollout(tokens=8)
    made = group_samples(group_of(replace(rollout, segments=(FIRST, unsampled))))
    assert [sample.segment_index for sample in made.samples] == [0]
    made = group_samples(group_of(replace(rollout, segments=(unsampled,))))
    assert (made.samples, made.left_out) == ((), {"untrainable": 1})


def test_group_without_judged_rollouts_has_no_samples() -> None:
    made = group_samples(group_of(make_rollout(index=0, reward=None), make_rollout(index=1, reward=None)))
    assert (made.samples, made.rewards, made.left_out) == ((), (), {"not_judged": 2})


def test_prompt_and_response_parts_of_segment() -> None:
    sample = group_samples(mixed_group()).samples[0]
    assert (sample.prompt_ids, sample.response_ids) == ([10, 11], [12, 13, 14, 15])
    assert sample.response_mask == [1, 1, 0, 1]
    assert sample.response_logprobs == [-0.5, -0.25, 0.0, -1.0]


def test_versions_of_tokens() -> None:
    first, second = group_samples(mixed_group()).samples[:2]
    assert first.token_versions() == [-1, -1, 7, 7, -1, 8]
    assert (first.oldest_version, first.newest_version, second.oldest_version) == (7, 8, 9)


def test_token_without_version_has_oldest_version() -> None:
    group = mixed_group()
    unnamed = replace(FIRST, weight_versions=FIRST.weight_versions[1:])
    (sample, *_) = group_samples(group_of(replace(group.rollouts[0], segments=(unnamed,)))).samples
    assert sample.token_versions() == [-1, -1, 8, 8, -1, 8]
    nowhere = replace(group.rollouts[0], segments=(replace(FIRST, weight_versions=()),), policy_version_min=None)
    (sample, *_) = group_samples(group_of(nowhere)).samples
    assert (sample.oldest_version, sample.token_versions(0)) == (None, [0] * 6)


@pytest.mark.parametrize(("rewards", "advantages"), [([1.0, 0.0], [1.0, -1.0]), ([0.3] * 3, [0.0] * 3)])
def test_normalised_advantages(rewards: list[float], advantages: list[float]) -> None:
    assert normalised(rewards) == pytest.approx(advantages)

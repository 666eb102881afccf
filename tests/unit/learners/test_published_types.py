"""Adapters against the published types of libraries that cannot be installed beside the tests."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from farm.learners import centred, group_samples
from tests.support.learner_values import FIRST, mixed_group
from tests.support.published_types import SampleStatus, TrainingSample, TrajectoryID, published_types


@pytest.fixture(autouse=True)
def types() -> Iterator[None]:
    with published_types():
        yield


def adapter(name: str) -> Any:
    return importlib.import_module(f"farm.learners.{name}")


def test_prime_rl_sample_has_streams_of_equal_length() -> None:
    first, second, *others = adapter("prime_rl").training_samples(group_samples(mixed_group(), centred).samples)
    assert isinstance(first, TrainingSample)
    assert len(others) == 2
    assert (first.token_ids, first.logprobs) == (FIRST.token_ids.tolist(), FIRST.logprobs.tolist())
    assert first.mask == [False, False, True, True, False, True]
    assert first.advantages == [0.0, 0.0, 0.5, 0.5, 0.0, 0.5]
    assert (first.temperatures, first.env_name) == ([1.0] * 6, "farm")
    assert second.token_ids == [10, 20, 21]


def test_slime_samples_of_rollout_share_its_id() -> None:
    samples = adapter("slime").slime_samples(group_samples(mixed_group(), centred), 4, 30)
    assert [(sample.group_index, sample.rollout_id) for sample in samples] == [(4, 30), (4, 30), (4, 31), (4, 32)]
    first = samples[0]
    assert (first.tokens, first.response_length) == ([10, 11, 12, 13, 14, 15], 4)
    assert (first.loss_mask, first.rollout_log_probs) == ([1, 1, 0, 1], [-0.5, -0.25, 0.0, -1.0])
    assert (first.weight_versions, first.status) == (["7", "8"], SampleStatus.COMPLETED)
    rewards, advantages = adapter("slime").group_advantages(None, samples)
    assert (rewards, advantages) == ([1.0, 1.0, 0.0, 0.5], [0.5, 0.5, -0.5, 0.0])


def test_skyrl_rows_are_steps_of_trajectories() -> None:
    ids = [TrajectoryID("one", repetition) for repetition in range(5)]
    rows = adapter("skyrl").group_rows(group_samples(mixed_group()), ids)
    assert [(row["trajectory_ids"].repetition_id, row["is_last_step"]) for row in rows] == [
        (0, False),
        (0, True),
        (1, True),
        (2, True),
    ]
    assert [sum(row["rewards"]) for row in rows] == [0.0, 1.0, 0.0, 0.5]
    assert rows[0]["response_ids"] == [12, 13, 14, 15]
    assert all(len(row["rewards"]) == len(row["response_ids"]) == len(row["loss_masks"]) for row in rows)


def test_skyrl_group_of_other_size_is_refused() -> None:
    with pytest.raises(ValueError, match="has 5 rollouts and n_samples_per_prompt is 2"):
        adapter("skyrl").group_rows(group_samples(mixed_group()), [TrajectoryID("one", 0), TrajectoryID("one", 1)])

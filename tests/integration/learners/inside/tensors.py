"""Tensors for AReaL and NeMo RL, with the fields that their repositories publish (AReaL 1.0.4, NeMo RL 7ea279ab)."""

import pytest
import torch

from farm.learners import centred, group_samples
from farm.learners.areal import trajectories
from farm.learners.nemo_rl import data
from tests.support.learner_values import FIRST, mixed_group

samples = group_samples(mixed_group(), centred).samples

batch = trajectories(samples[:2])
assert set(batch) == {"input_ids", "loss_mask", "logprobs", "versions", "attention_mask", "rewards"}
assert batch["input_ids"].tolist() == [[10, 11, 12, 13, 14, 15], [10, 20, 21, 0, 0, 0]]
assert batch["loss_mask"].tolist() == [[0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0]]
assert batch["versions"].tolist() == [[-1, -1, 7, 7, -1, 8], [-1, -1, 9, -1, -1, -1]]
assert batch["logprobs"].tolist()[1] == [0.0, 0.0, -2.0, 0.0, 0.0, 0.0]
assert batch["attention_mask"].sum(1).tolist() == [6, 3]
assert (batch["rewards"].tolist(), batch["attention_mask"].dtype) == ([1.0, 1.0], torch.bool)
with pytest.raises(ValueError, match="return None"):
    trajectories([])

first, *others = data(samples)
specified = {"message_log", "length", "extra_env_info", "loss_multiplier", "idx", "task_name"}
assert set(first) == specified | {"total_reward"}
assert (first["length"], first["idx"], others[0]["idx"], first["total_reward"]) == (6, 0, 1, 1.0)
log = first["message_log"]
assert [message["role"] for message in log] == ["user", "assistant", "user", "assistant"]
assert torch.cat([message["token_ids"] for message in log]).tolist() == FIRST.token_ids.tolist()
sampled = [message["generation_logprobs"].tolist() for message in log if message["role"] == "assistant"]
assert sampled == [[-0.5, -0.25], [-1.0]]
assert not any("generation_logprobs" in message for message in log if message["role"] == "user")

"""Outputs of verl's agent loop, and the tensors that verl makes of them."""

from farm.learners import centred, group_samples
from farm.learners.verl import agent_loop_outputs
from tests.support.learner_values import mixed_group

first, second, *others = agent_loop_outputs(group_samples(mixed_group(), centred).samples)
assert len(others) == 2
assert (first.prompt_ids, first.response_ids, first.response_mask) == ([10, 11], [12, 13, 14, 15], [1, 1, 0, 1])
assert (first.reward_score, second.reward_score, first.num_turns) == (1.0, 1.0, 2)
assert (first.extra_fields["min_global_steps"], first.extra_fields["max_global_steps"]) == (7, 8)
assert first.extra_fields["rollout_id"] == second.extra_fields["rollout_id"]
tensors = first.as_dict()
assert tensors["rollout_log_probs"].tolist() == [-0.5, -0.25, 0.0, -1.0]
assert tensors["response_mask"].tolist() == [1, 1, 0, 1]

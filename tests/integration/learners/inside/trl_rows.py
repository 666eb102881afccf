"""Rows of TRL's asynchronous trainer: one for each segment, as its collator packs them."""

from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl.experimental.async_grpo.packing import TreeRow

from farm.learners import centred, group_samples
from farm.learners.trl_async import rollout_samples
from tests.support.learner_values import FIRST, SECOND, mixed_group

made = group_samples(mixed_group(), centred)
rows = rollout_samples(made, 3, lambda sample: sample.oldest_version or 0)
assert all(isinstance(row, RolloutSample) for row in rows)
assert [(row.group_id, row.model_version, row.advantage) for row in rows[:2]] == [(3, 7, 0.5), (3, 9, 0.5)]
for row, segment in zip(rows, (FIRST, SECOND), strict=False):
    assert row.input_ids.tolist() == segment.token_ids.tolist()
    assert row.completion_mask.tolist() == list(segment.loss_mask)
    assert row.old_log_probs.tolist() == segment.logprobs.tolist()
assert rows[0].metrics["reward"] == 1.0

packed = TreeRow()
fields = ("input_ids", "completion_mask", "old_log_probs", "advantage", "group_id")
for row in rows[:2]:
    packed.add({field: getattr(row, field) for field in fields})
terms = packed.pack()
assert terms["old_log_probs"].tolist() == [-0.5, -0.25, -1.0, -2.0]
assert terms["advantages"].tolist() == [0.5] * 4

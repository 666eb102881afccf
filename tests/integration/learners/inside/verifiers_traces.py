"""Traces of verifiers: each segment is a branch with the tokens, the mask and the log-probabilities of the farm."""

from verifiers.v1.episode import WireEpisode
from verifiers.v1.trace import TraceTask

from farm.learners import centred, group_samples
from farm.learners.verifiers import group_traces
from tests.support.learner_values import FIRST, SECOND, mixed_group

made = group_samples(mixed_group(), centred)
traces = group_traces(made)
assert [trace.id for trace in traces] == [rollout.rollout_id for rollout in made.group.rollouts[:3]]
two_segments = traces[0]
assert (two_segments.reward, two_segments.ok, two_segments.num_branches) == (1.0, True, 2)
assert two_segments.info["policy_version_max"] == 9
for branch, segment in zip(two_segments.branches, (FIRST, SECOND), strict=True):
    assert branch.trainable
    assert branch.token_ids == segment.token_ids.tolist()
    assert branch.sampled_mask == [bool(sampled) for sampled in segment.loss_mask]
    assert branch.logprobs == segment.logprobs.tolist()
    assert branch.advantages == [0.5 * sampled for sampled in segment.loss_mask]
assert two_segments.num_turns == 3

task = TraceTask(type="FarmTask", data=two_segments.task.data)
episode = WireEpisode(task=task, ok=True, traces=traces)
again = WireEpisode.model_validate(episode.model_dump(mode="python"))
assert again.traces[0].branches[0].logprobs == FIRST.logprobs.tolist()
assert again.traces[0].reward == 1.0

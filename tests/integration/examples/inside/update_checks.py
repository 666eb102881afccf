"""GRPO's update moves a policy as its rewards say. Every number follows from a fixed seed."""

from array import array
from math import isclose

import torch

from farm.core.rollout import Segment
from farm.examples.grpo.language import IDS, render
from farm.examples.grpo.network import PolicyNetwork, sample
from farm.examples.grpo.update import Grpo, GrpoConfig, Sample, frozen

PROMPT = render([{"role": "user", "content": "The word is in north/door.txt."}])
LOOK = IDS["look"]


def replies(network: PolicyNetwork, count: int, seed: int) -> list[Segment]:
    generator = torch.Generator().manual_seed(seed)
    served = frozen(network)
    segments = []
    for reply in (sample(served, PROMPT, generator) for _ in range(count)):
        ids = array("i", [*PROMPT, *reply.token_ids])
        mask = bytes(len(PROMPT)) + b"\1" * len(reply.token_ids)
        logprobs = array("f", [*[0.0] * len(PROMPT), *reply.logprobs])
        segments.append(Segment(ids, mask, logprobs, (), len(PROMPT), ()))
    return segments


def share_of_looks(segments: list[Segment]) -> float:
    return sum(segment.token_ids[len(PROMPT)] == LOOK for segment in segments) / len(segments)


torch.set_num_threads(1)
loop = Grpo(PolicyNetwork(seed=0), GrpoConfig())
segments = replies(loop.network, 64, seed=0)
before = share_of_looks(segments)
assert before < 0.6, before

advantages = [(segment.token_ids[len(PROMPT)] == LOOK) - before for segment in segments]
result = loop.update([Sample(*pair) for pair in zip(segments, advantages, strict=True)])
plain = -sum(a * sum(s.loss_mask) for s, a in zip(segments, advantages, strict=True)) / len(segments)
assert isclose(result.loss, plain, rel_tol=1e-4), "the first loss is the sum over tokens, not divided by their number"
assert result.clipped == 0

for seed in range(1, 30):
    segments = replies(loop.network, 64, seed)
    mean = share_of_looks(segments)
    taken = [Sample(segment, (segment.token_ids[len(PROMPT)] == LOOK) - mean) for segment in segments]
    result = loop.update(taken)
after = share_of_looks(replies(loop.network, 256, seed=30))
assert after > 0.9, after

far = result.kl
assert far > 0.2, far
pulled = Grpo(loop.network, GrpoConfig(kl=1.0))
pulled.reference = loop.reference
for seed in range(31, 60):
    result = pulled.update([Sample(segment, 0.0) for segment in replies(pulled.network, 64, seed)])
assert result.kl < far / 2, (far, result.kl)

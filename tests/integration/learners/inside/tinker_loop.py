"""A loop in Tinker's style on a farm. Tinker's service is a table of scores on this machine that takes Tinker's data.

The argument is the farm's URL. The last line that is printed is a JSON object for the test.
"""

import json
import sys

import tinker
import torch

from farm.client import FarmClient
from farm.learners import LeaseLoop, Leasing, centred, group_samples
from farm.learners.tinker import announce, datum, train
from tests.support.learner_values import mixed_group

first, second, *_ = [datum(sample) for sample in group_samples(mixed_group(), centred).samples]
assert isinstance(first, tinker.Datum)
assert first.model_input.to_ints() == [10, 11, 12, 13, 14]
inputs = {name: data.tolist() for name, data in first.loss_fn_inputs.items()}
assert inputs["target_tokens"] == [11, 12, 13, 14, 15]
assert inputs["logprobs"] == [0.0, -0.5, -0.25, 0.0, -1.0]
assert inputs["advantages"] == [0.0, 0.5, 0.5, 0.0, 0.5]
assert second.loss_fn_inputs["target_tokens"].tolist() == [20, 21]


class Done:
    def __init__(self, value: object) -> None:
        self._value = value

    def result(self) -> object:
        return self._value


class Table:
    """A training client whose model is a table: scores of the next token by the last one."""

    def __init__(self, vocabulary: int) -> None:
        self.scores = torch.zeros(vocabulary, vocabulary, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.scores], lr=1.0)
        self.data = 0

    def forward_backward(self, data: list[tinker.Datum], loss_fn: str) -> Done:
        assert loss_fn == "importance_sampling"
        losses = []
        for one in data:
            fields = {name: value.to_torch() for name, value in one.loss_fn_inputs.items()}
            rows = torch.log_softmax(self.scores[torch.tensor(one.model_input.to_ints())], -1)
            logprobs = rows.gather(-1, fields["target_tokens"].unsqueeze(-1)).squeeze(-1)
            losses.append(-(torch.exp(logprobs - fields["logprobs"]) * fields["advantages"]).sum())
        loss = torch.stack(losses).sum()
        loss.backward()
        self.data += len(data)
        return Done(float(loss))

    def optim_step(self, adam_params: tinker.AdamParams) -> Done:
        assert adam_params.learning_rate > 0
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Done(None)


client = Table(20)
versions: list[int] = []
with FarmClient(sys.argv[1]) as farm, LeaseLoop(farm, Leasing("tinker", "run-a"), groups=2) as loop:
    farm.put_policy("main", 4, endpoints=["http://127.0.0.1:1/v1"])
    steps = train(loop, client, lambda step: versions.append(announce(farm, "main")))
    acked = farm.run("run-a").summary.groups_acked
print(json.dumps({"steps": steps, "versions": versions, "data": client.data, "acked": acked}))

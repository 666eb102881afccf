"""A task of Inspect with ``sandbox="farm"`` and Inspect's bash tool. The argument is a Dockerfile."""

import sys

import inspect_ai
from inspect_ai import Task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash

MODEL = "mockllm/model"


def counted(output: ModelOutput) -> ModelOutput:
    """Add a usage, because Inspect downloads a tokenizer for an output without one."""
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


replies = [
    counted(ModelOutput.for_tool_call(MODEL, "bash", {"command": "cat note.txt made-by-build"})),
    counted(ModelOutput.from_content(MODEL, "done")),
] * 2
sample = Sample(input="Read the note.", target="done", files={"note.txt": "from the sample, "})
for sandbox in ("farm", ("farm", sys.argv[1])):
    task = Task([sample], solver=[use_tools(bash()), generate()], scorer=includes(), sandbox=sandbox)
    (log,) = inspect_ai.eval(task, model=get_model(MODEL, custom_outputs=replies), display="none", log_dir="logs")
    assert log.status == "success", log.error
    (tool,) = [message.text for message in log.samples[0].messages if message.role == "tool"]
    print(sandbox, repr(tool))

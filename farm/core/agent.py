"""An agent: an unmodified program that works inside the sandbox and reaches its model by the farm's proxy."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

AGENT_DIR = "/opt/farm-agent"
"""The directory of the agent inside a sandbox."""

AGENT_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
INSTRUCTION_FILE = "/tmp/farm-instruction.md"
"""The file in a sandbox that holds the instruction, if the agent asks for it: an argument has at most 128 KiB."""
PLACEHOLDERS = (
    "instruction_file",
    "instruction",
    "workspace",
    "bin",
    "dir",
    "model",
    "key",
    "openai_url",
    "anthropic_url",
)

_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of a run.

    ``pip``: requirements, installed into a virtual environment at AGENT_DIR. ``install``: a shell script that runs
    after that, as root, while the image is built. ``command``: the program and its arguments, and ``env`` its
    variables; both may hold PLACEHOLDERS in braces. ``model``: the name of the model; ``fixed_model`` refuses
    requests for another name.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    pip: tuple[str, ...] = ()
    install: str = ""
    model: str = "policy"
    fixed_model: bool = False

    @property
    def installs(self) -> bool:
        """True if the agent is not in the image of the task already."""
        return bool(self.pip or self.install)

    @property
    def reads_instruction_file(self) -> bool:
        return any("{instruction_file}" in text for text in (*self.command, *self.env.values()))


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder by its value. Other text in braces stays."""
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)

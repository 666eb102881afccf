"""The documents of agents that come with the farm."""

from importlib.resources import files

from farm.agents.document import parse_agent
from farm.core.agent import Agent


class UnknownAgent(ValueError):
    """Raised for a name that no agent of the farm has; the message lists the names."""


def agent_names() -> list[str]:
    return sorted(
        entry.name.removesuffix(".toml") for entry in files("farm.agents").iterdir() if _is_document(entry.name)
    )


def named_agent(name: str) -> Agent:
    """Return the agent with a name. Raises UnknownAgent."""
    if name not in agent_names():
        raise UnknownAgent(f"there is no agent {name}; there are: {', '.join(agent_names())}")
    return parse_agent(files("farm.agents").joinpath(f"{name}.toml").read_bytes()).to_core()


def _is_document(name: str) -> bool:
    return name.endswith(".toml")

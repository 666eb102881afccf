"""The agents that the farm knows by name, and the images in which they are installed.

This room decides how an agent gets into a sandbox. Enter at ``named_agent`` and ``ensure_agent_image``. Each agent is
one TOML document of this folder. The page is farm/docs/agents.md.
"""

from farm.agents.image import agent_spec, ensure_agent_image, image_with_agent
from farm.agents.named import UnknownAgent, agent_names, named_agent

__all__ = ["UnknownAgent", "agent_names", "agent_spec", "ensure_agent_image", "image_with_agent", "named_agent"]

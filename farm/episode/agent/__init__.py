"""The work of an agent: an unmodified program in the sandbox, in place of the farm's own turn loop.

This room decides how an agent is started, when it has to end, and how its requests become turns. Enter at
``AgentLoop``. The page is farm/docs/architecture/model-proxy.md.
"""

from farm.episode.agent.loop import AgentEnd, AgentLoop

__all__ = ["AgentEnd", "AgentLoop"]

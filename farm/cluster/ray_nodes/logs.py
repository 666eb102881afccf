"""The logs of all nodes over Ray, for the gateway."""

import asyncio

from ray.exceptions import RayError

from farm.cluster.ray_agents import RayAgents
from farm.learner_sandboxes import NodeAway
from farm.logs import LogPage, LogQuery, LogsUnavailable

ANSWER_S = 10.0


class RayNodeLogs:
    """Implement ``NodeLogs`` by calls of the actors of the agents."""

    def __init__(self, agents: RayAgents) -> None:
        self._agents = agents

    async def read(self, node_id: str, query: LogQuery) -> LogPage:
        try:
            async with asyncio.timeout(ANSWER_S):
                actor = await self._agents.actor(node_id)
                page: LogPage = await actor.read_logs.remote(query)
        except NodeAway as error:
            raise LogsUnavailable(str(error)) from None
        except TimeoutError:
            raise LogsUnavailable(f"its agent has not answered within {ANSWER_S:g} s") from None
        except RayError as error:
            self._agents.forget(node_id)
            raise LogsUnavailable("its agent ended during the call, or does not answer") from error
        return page

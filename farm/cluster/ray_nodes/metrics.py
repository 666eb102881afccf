"""The metrics of all nodes over Ray, for the gateway."""

import asyncio

from ray.exceptions import RayError

from farm.cluster.ray_agents import RayAgents
from farm.learner_sandboxes import NodeAway
from farm.scheduler.client import NodeMetricsUnavailable

ANSWER_S = 5.0


class RayNodeMetrics:
    """Implement ``NodeMetricsSource`` by calls of the actors of the agents."""

    def __init__(self, agents: RayAgents) -> None:
        self._agents = agents

    async def read(self, node_id: str) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_S):
                actor = await self._agents.actor(node_id)
                text: bytes = await actor.metrics.remote()
        except NodeAway as error:
            raise NodeMetricsUnavailable(str(error)) from None
        except TimeoutError:
            why = f"the agent of {node_id} has not answered within {ANSWER_S:g} s; repeat the call"
            raise NodeMetricsUnavailable(why) from None
        except RayError as error:
            self._agents.forget(node_id)
            why = f"the agent of {node_id} ended during the call and is started again; repeat the call"
            raise NodeMetricsUnavailable(why) from error
        return text

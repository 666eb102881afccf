"""The actors of the node agents, for callers outside of the scheduler."""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError

from farm.cluster.ray_actors import NAMESPACE
from farm.cluster.ray_scheduler_client import RaySchedulerClient
from farm.learner_sandboxes import NodeAway


class RayAgents:
    """Find the actor of a node's agent. The scheduler is asked only about a node that is new, or that was away."""

    def __init__(self, scheduler: RaySchedulerClient) -> None:
        self._scheduler = scheduler
        self._actors: dict[str, Any] = {}

    async def actor(self, node_id: str) -> Any:
        """Return the actor of a node. Raises NodeAway."""
        known = self._actors.get(node_id)
        if known is not None:
            return known
        try:
            name = await self._scheduler.agent_name(node_id)
        except RayError as error:
            raise NodeAway(
                f"the scheduler, which knows the node {node_id}, does not answer; repeat the call"
            ) from error
        if name is None:
            raise NodeAway(f"its node {node_id} was lost or has left the farm", for_good=True)
        if not name:
            raise NodeAway(f"the scheduler has restarted and waits for the node {node_id}; repeat the call")
        try:
            actor = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
        except (RayError, ValueError) as error:
            raise NodeAway(f"the agent of the node {node_id} is not there; repeat the call") from error
        return self._actors.setdefault(node_id, actor)

    def forget(self, node_id: str) -> None:
        """Ask the scheduler again at the next call, because the actor did not answer."""
        self._actors.pop(node_id, None)

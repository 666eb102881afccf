"""The scheduler's client over Ray, for every process of the farm."""

from typing import Any

from ray.exceptions import RayTaskError

from farm.core.run import TaskRef
from farm.scheduler.client import SchedulerUnavailable
from farm.scheduler.status import FarmStatus, SandboxPlacement
from farm.store import StoreUnavailable


class RaySchedulerClient:
    """Implement ``farm.scheduler.client.SchedulerClient`` by calls of the scheduler's actor.

    Every method raises a RayError while the scheduler is away; Ray restarts it. SchedulerUnavailable names the cause if
    the scheduler cannot read the store.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def submit(self, run_id: str) -> None:
        await self._call("submit", run_id)

    async def pause(self, run_id: str) -> None:
        await self._call("pause", run_id)

    async def resume(self, run_id: str) -> None:
        await self._call("resume", run_id)

    async def cancel(self, run_id: str) -> None:
        await self._call("cancel", run_id)

    async def drain_node(self, node_id: str, drain: bool) -> bool:
        return bool(await self._call("drain_node", node_id, drain))

    async def place_sandbox(self, sandbox_id: str, task: TaskRef, wait_s: float, node_id: str = "") -> SandboxPlacement:
        placement: SandboxPlacement = await self._call("place_sandbox", sandbox_id, task, wait_s, node_id)
        return placement

    async def release_sandbox(self, sandbox_id: str) -> None:
        await self._call("release_sandbox", sandbox_id)

    async def agent_name(self, node_id: str) -> str | None:
        """Return the name of the actor of a node's agent. None: the farm has no such node. "": not known yet."""
        name: str | None = await self._actor.agent_name.remote(node_id)
        return name

    async def status(self) -> FarmStatus:
        status: FarmStatus = await self._call("status")
        return status

    async def metrics(self) -> bytes:
        text: bytes = await self._call("metrics")
        return text

    async def redis_url(self) -> str:
        """Return the URL of the Redis that all nodes share."""
        return str(await self._actor.redis_url.remote())

    async def pid(self) -> int:
        """Return the id of the scheduler's process."""
        return int(await self._actor.pid.remote())

    async def _call(self, method: str, *arguments: object) -> Any:
        try:
            return await self._actor.call.remote(method, *arguments)
        except RayTaskError as error:
            if isinstance(error.cause, StoreUnavailable):
                raise SchedulerUnavailable(str(error.cause)) from None
            raise

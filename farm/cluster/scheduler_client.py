"""The scheduler from any process of the farm; what the gateway calls a SchedulerClient."""

from typing import Any

from farm.core.run import RunSpec
from farm.scheduler.status import FarmStatus


class RaySchedulerClient:
    """Every method raises a RayError while the scheduler is away; Ray restarts it."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def submit(self, spec: RunSpec) -> None:
        await self._actor.submit.remote(spec)

    async def pause(self, run_id: str) -> None:
        await self._actor.pause.remote(run_id)

    async def resume(self, run_id: str) -> None:
        await self._actor.resume.remote(run_id)

    async def cancel(self, run_id: str) -> None:
        await self._actor.cancel.remote(run_id)

    async def drain_node(self, node_id: str, drain: bool) -> bool:
        return bool(await self._actor.drain_node.remote(node_id, drain))

    async def status(self) -> FarmStatus:
        status: FarmStatus = await self._actor.status.remote()
        return status

    async def metrics(self) -> bytes:
        text: bytes = await self._actor.metrics.remote()
        return text

    async def redis_url(self) -> str:
        return str(await self._actor.redis_url.remote())

    async def pid(self) -> int:
        """Of its process."""
        return int(await self._actor.pid.remote())

"""A farm in one process for the tests of learner sandboxes: scheduler, node agents and gateway, without Ray."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from farm.core.run import TaskRef
from farm.learner_sandboxes import LearnerSandboxes, NodeAway
from farm.node.agent import NodeAgent
from farm.node.image_cache import ImageCache
from farm.node.resources import NodeResources
from farm.node.settings import AgentSettings
from farm.policy import EndpointPool, PolicyDirectory, PolicyRoutes
from farm.scheduler.messages import Event
from farm.scheduler.service import NodeCommand, SchedulerService
from farm.scheduler.settings import SchedulerSettings
from farm.scheduler.status import FarmStatus, SandboxPlacement
from farm.store import Store
from farm.tasks import TaskBundle
from sandboxes import Runtime


class LocalScheduler:
    """A ``SchedulerClient`` of the service in this process. ``service`` is replaced when the scheduler restarts."""

    def __init__(self, service: SchedulerService) -> None:
        self.service = service

    async def submit(self, run_id: str) -> None:
        await self.service.submit(run_id)

    async def pause(self, run_id: str) -> None:
        self.service.pause(run_id)

    async def resume(self, run_id: str) -> None:
        self.service.resume(run_id)

    async def cancel(self, run_id: str) -> None:
        self.service.cancel(run_id)

    async def drain_node(self, node_id: str, drain: bool) -> bool:
        return self.service.drain_node(node_id, drain)

    async def place_sandbox(self, sandbox_id: str, task: TaskRef, wait_s: float, node_id: str = "") -> SandboxPlacement:
        return await self.service.place_sandbox(sandbox_id, task, wait_s, node_id)

    async def release_sandbox(self, sandbox_id: str) -> None:
        self.service.release_sandbox(sandbox_id)

    async def status(self) -> FarmStatus:
        return self.service.status()

    async def metrics(self) -> bytes:
        return await self.service.metrics()


class SandboxFarm:
    """``clock`` counts the life of sandboxes: it stands still until ``pass_time`` moves it."""

    def __init__(self, store: Store, directory: Path, settings: SchedulerSettings) -> None:
        self.store = store
        self.scheduler = LocalScheduler(SchedulerService(store, self._send, settings=settings))
        self.agents: dict[str, NodeAgent] = {}
        self.now = 1000.0
        self._settings = settings
        self._directory = directory
        self._stacks: dict[str, AsyncExitStack] = {}

    async def host(self, node_id: str) -> LearnerSandboxes:
        if node_id not in self.agents:
            raise NodeAway(f"its node {node_id} was lost or has left the farm", for_good=True)
        return self.agents[node_id].sandboxes

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    async def start_node(self, name: str, runtime: Runtime, *, slots: int = 3) -> None:
        stack = self._stacks[name] = AsyncExitStack()
        agent = NodeAgent(
            name,
            NodeResources(runtime, ImageCache(_image_is_there)),
            AgentSettings(slots, self._directory / name, heartbeat_s=0.05, clock=lambda: self.now),
            store=self.store,
            send_events=self._handle,
            routes=PolicyRoutes(EndpointPool(), PolicyDirectory(self.store.policies)),
        )
        self.agents[name] = await stack.enter_async_context(agent)
        await until(lambda: self.scheduler.service.has_node(name))

    async def stop_node(self, name: str) -> None:
        del self.agents[name]
        await self._stacks.pop(name).aclose()

    async def restart_scheduler(self) -> None:
        await self.scheduler.service.close()
        self.scheduler.service = SchedulerService(self.store, self._send, settings=self._settings)
        await self.scheduler.service.open()

    @property
    def slots_of_sandboxes(self) -> int:
        """Slots that sandboxes hold, as the scheduler counts them."""
        return sum(node.sandboxes for node in self.scheduler.service.status().nodes)

    async def close(self) -> None:
        for name in list(self.agents):
            await self.stop_node(name)
        await self.scheduler.service.close()

    async def _handle(self, events: Sequence[Event]) -> None:
        self.scheduler.service.handle_events(events)

    def _send(self, node_id: str, commands: Sequence[NodeCommand]) -> None:
        if node_id in self.agents:
            self.agents[node_id].execute(commands)


@asynccontextmanager
async def sandbox_farm(store: Store, directory: Path, settings: SchedulerSettings) -> AsyncIterator[SandboxFarm]:
    farm = SandboxFarm(store, directory, settings)
    await farm.scheduler.service.open()
    try:
        yield farm
    finally:
        await farm.close()


async def until(holds: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - the scheduler tells nobody
            await asyncio.sleep(0.01)


async def _image_is_there(bundle: TaskBundle) -> None:
    """The test has built it."""

"""A gateway over a node with real sandboxes, for the tests of learner sandboxes."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from farm.client import FarmClient
from farm.core.run import TaskRef
from farm.scheduler.admission import AdmissionSettings, Thresholds
from farm.scheduler.settings import SchedulerSettings
from farm.tasks import pack, task_ref
from farm.tasks.validation_file import FitTasks
from sandboxes.runtimes.oci.runtime import OciRuntime
from tests.support.farm import tiny
from tests.support.farm.sandbox_farm import SandboxFarm, sandbox_farm
from tests.support.gateway_server import running_gateway
from tests.support.redis_server import running_store

LEARNER, OPERATOR, VIEWER = "a-learner", "an-operator", "a-viewer"
NEVER = Thresholds(math.inf, math.inf, math.inf)
NEVER_PRESSED = SchedulerSettings(admission=AdmissionSettings(NEVER, NEVER, NEVER, NEVER))
T = TypeVar("T")


@dataclass
class SandboxPlace:
    farm: SandboxFarm
    http: httpx.AsyncClient
    url: str
    runtime: OciRuntime
    image: str

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(path, json={} if body is None else body, headers=named)

    async def create(self, **fields: Any) -> str:
        """The path of a new sandbox of the tiny task."""
        body = fields if "image" in fields else {"task_id": "tiny", "taskset": "demo", **fields}
        made = await self.post("/v1/sandboxes", body)
        assert made.status_code == 201, made.text
        return f"/v1/sandboxes/{made.json()['sandbox_id']}"

    async def run(self, path: str, command: str) -> str:
        answer = await self.post(f"{path}/exec", {"command": command, "timeout_s": 30.0})
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["stdout"]
        return text

    async def in_client(self, work: Callable[[FarmClient], T]) -> T:
        def use() -> T:
            with FarmClient(self.url, OPERATOR) as client:
                return work(client)

        return await asyncio.to_thread(use)

    async def lives(self) -> int:
        return len([sandbox async for sandbox in self.runtime.living()])


@asynccontextmanager
async def sandbox_place(tmp_path: Path, oci_runtime: OciRuntime, tiny_image: str) -> AsyncIterator[SandboxPlace]:
    """The task set ``demo`` holds the tiny task. At the end no sandbox may be left."""
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    bundle = tiny.task(tiny_image)

    def prepare(path: Path, tools: Sequence[str], fit: FitTasks | None = None, /) -> Sequence[tuple[TaskRef, bytes]]:
        return [(task_ref(bundle), pack(bundle))]

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(running_store(tmp_path))
        farm = await stack.enter_async_context(sandbox_farm(store, tmp_path, NEVER_PRESSED))
        gateway = running_gateway(
            store,
            tmp_path,
            tokens={"learner": LEARNER, "operator": OPERATOR, "viewer": VIEWER},
            scheduler=farm.scheduler,
            sandbox_nodes=farm,
            prepare=prepare,
        )
        url = await stack.enter_async_context(gateway)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120.0, headers=bearer(LEARNER)))
        await farm.start_node("node-1", oci_runtime)
        yield SandboxPlace(farm, http, url, oci_runtime, tiny_image)
        for name in list(farm.agents):
            await farm.stop_node(name)
        assert not [sandbox async for sandbox in oci_runtime.living()], "a sandbox was left behind"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}

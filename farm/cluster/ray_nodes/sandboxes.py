"""The learner sandboxes of all nodes over Ray, for the gateway."""

from collections.abc import Callable
from typing import Any

from ray.exceptions import RayError, RayTaskError

from farm.cluster.ray_agents import RayAgents
from farm.learner_sandboxes import (
    Answered,
    CreateSandbox,
    ExecCommand,
    FileWritten,
    GradeResult,
    NodeAway,
    SandboxRefused,
    SandboxState,
    WriteFile,
)
from sandboxes.interface import ExecResult
from sandboxes.tools.tool import ToolResult


class RaySandboxNodes:
    """Implement ``SandboxNodes``: calls go to the actors of the agents directly."""

    def __init__(self, agents: RayAgents) -> None:
        self._agents = agents

    async def host(self, node_id: str) -> "RaySandboxHost":
        """Return the sandboxes of a node."""
        actor = await self._agents.actor(node_id)
        return RaySandboxHost(node_id, actor, on_away=lambda: self._agents.forget(node_id))


class RaySandboxHost:
    """Implement ``SandboxHost`` by calls of the actor of a node's agent. ``on_away``: called if it does not answer."""

    def __init__(self, node_id: str, actor: Any, *, on_away: Callable[[], object]) -> None:
        self._node_id = node_id
        self._actor = actor
        self._on_away = on_away

    async def create(self, order: CreateSandbox) -> SandboxState:
        state: SandboxState = await self._call("create", order)
        return state

    async def list(self) -> tuple[SandboxState, ...]:
        states: tuple[SandboxState, ...] = await self._call("list")
        return states

    async def get(self, sandbox_id: str) -> SandboxState:
        state: SandboxState = await self._call("get", sandbox_id)
        return state

    async def call_tool(self, sandbox_id: str, tool: str, arguments: str, key: str) -> Answered[ToolResult]:
        answered: Answered[ToolResult] = await self._call("call_tool", sandbox_id, tool, arguments, key)
        return answered

    async def exec(self, sandbox_id: str, command: ExecCommand, key: str) -> Answered[ExecResult]:
        answered: Answered[ExecResult] = await self._call("exec", sandbox_id, command, key)
        return answered

    async def read_file(self, sandbox_id: str, path: str, offset: int, limit: int) -> Answered[bytes]:
        answered: Answered[bytes] = await self._call("read_file", sandbox_id, path, offset, limit)
        return answered

    async def write_file(self, sandbox_id: str, file: WriteFile) -> Answered[FileWritten]:
        answered: Answered[FileWritten] = await self._call("write_file", sandbox_id, file)
        return answered

    async def grade(self, sandbox_id: str, key: str) -> Answered[GradeResult]:
        answered: Answered[GradeResult] = await self._call("grade", sandbox_id, key)
        return answered

    async def delete(self, sandbox_id: str) -> None:
        await self._call("delete", sandbox_id)

    async def _call(self, method: str, *arguments: object) -> Any:
        try:
            return await self._actor.sandbox.remote(method, *arguments)
        except RayTaskError as error:
            if isinstance(error.cause, SandboxRefused):
                raise error.cause from None
            raise
        except RayError as error:
            self._on_away()
            text = f"the agent of the node {self._node_id} ended during the call, or does not answer; repeat the call"
            raise NodeAway(text) from error

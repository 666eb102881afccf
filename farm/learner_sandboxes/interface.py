"""The interfaces through which the gateway reaches the learner sandboxes of a node. They are independent of Ray."""

from typing import Protocol

from farm.learner_sandboxes.messages import (
    Answered,
    CreateSandbox,
    ExecCommand,
    FileWritten,
    GradeResult,
    SandboxState,
    WriteFile,
)
from sandboxes.interface import ExecResult
from sandboxes.tools.tool import ToolResult


class NodeAway(Exception):
    """Raised if a node does not answer. ``for_good``: it is lost or has left, so its sandboxes are gone."""

    def __init__(self, message: str, *, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good


class SandboxHost(Protocol):
    """The learner sandboxes of one node. Every method may raise SandboxRefused, and NodeAway over a transport.

    ``key``: an idempotency key. A repeated call with the same key gets the result of the first one, which may still
    run. "" means that the call is not repeated.
    """

    async def create(self, order: CreateSandbox) -> SandboxState:
        """Start a sandbox, or a copy of another one. Return when it can be used."""
        ...

    async def list(self) -> tuple[SandboxState, ...]: ...

    async def get(self, sandbox_id: str) -> SandboxState:
        """Return the state of a sandbox. This is no use of it: it does not prolong its life."""
        ...

    async def call_tool(self, sandbox_id: str, tool: str, arguments: str, key: str) -> Answered[ToolResult]:
        """Run a tool as an episode runs it. ``arguments``: JSON text, as a policy writes it."""
        ...

    async def exec(self, sandbox_id: str, command: ExecCommand, key: str) -> Answered[ExecResult]: ...

    async def read_file(self, sandbox_id: str, path: str, offset: int, limit: int) -> Answered[bytes]: ...

    async def write_file(self, sandbox_id: str, file: WriteFile) -> Answered[FileWritten]: ...

    async def grade(self, sandbox_id: str, key: str) -> Answered[GradeResult]:
        """Grade a copy of the work in fresh sandboxes. The sandbox stays as it is."""
        ...

    async def delete(self, sandbox_id: str) -> None:
        """Remove a sandbox. Return when nothing is left of it; also if it had ended already."""
        ...


class SandboxNodes(Protocol):
    async def host(self, node_id: str) -> SandboxHost:
        """Return the sandboxes of a node. Raises NodeAway."""
        ...

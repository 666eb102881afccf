"""The interface of a tool: name, schema and result."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from sandboxes.interface import Sandbox


class ToolErrorKind(StrEnum):
    """Why a tool call failed. With the first four kinds the tool did not run; the first three mean a malformed call."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_JSON = "bad_json"
    BAD_ARGUMENTS = "bad_arguments"
    OVER_LIMIT = "over_limit"
    REFUSED = "refused"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call.

    ``content`` is the text that the policy reads. ``done`` means that the policy declared its work finished.
    """

    content: str
    error_kind: ToolErrorKind | None = None
    exit_code: int | None = None
    timed_out: bool = False
    truncated: bool = False
    duration_s: float = 0.0
    done: bool = False


def refused(message: str) -> ToolResult:
    return ToolResult(f"error: {message}", error_kind=ToolErrorKind.REFUSED)


def timed_out(limit_s: float, state: str = "") -> ToolResult:
    """Return the result of a call that exceeded ``limit_s``. ``state`` tells the policy how far the call came."""
    content = f"error: timed out after {limit_s:g} s{state and '; '}{state}"
    return ToolResult(content, error_kind=ToolErrorKind.TIMEOUT, timed_out=True)


class Tool(Protocol):
    """One tool. ``Input`` validates the arguments and is the source of the schema."""

    name: ClassVar[str]
    description: ClassVar[str]
    Input: ClassVar[type[BaseModel]]

    def reads_only(self, args: Any) -> bool:
        """Return whether a call with these arguments changes nothing, so that read-only calls may run concurrently."""
        ...

    async def run(self, sandbox: Sandbox, args: Any, *, timeout_s: float) -> ToolResult: ...


class Reads:
    """A tool of which every call is read-only."""

    def reads_only(self, args: Any) -> bool:
        return True


class Writes:
    """A tool of which any call may change something."""

    def reads_only(self, args: Any) -> bool:
        return False

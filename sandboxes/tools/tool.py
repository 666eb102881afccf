"""What a tool is to a policy: a name, a schema, and an honest result."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel

from sandboxes.interface import Sandbox


class ToolErrorKind(StrEnum):
    """Why a call is an error to the policy. Of the first four the tool did not run; the first three are malformed."""

    UNKNOWN_TOOL = "unknown_tool"
    BAD_JSON = "bad_json"
    BAD_ARGUMENTS = "bad_arguments"
    OVER_LIMIT = "over_limit"
    REFUSED = "refused"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """``content`` is what the policy reads. ``done`` says that the policy has declared its work finished."""

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
    """``state``: what is known of what the call was to do."""
    told = f"error: timed out after {limit_s:g} s{state and '; '}{state}"
    return ToolResult(told, error_kind=ToolErrorKind.TIMEOUT, timed_out=True)


class Tool(Protocol):
    """One tool. ``Input`` validates the arguments and is the source of the schema."""

    name: ClassVar[str]
    description: ClassVar[str]
    Input: ClassVar[type[BaseModel]]

    def reads_only(self, args: Any) -> bool:
        """Whether such a call changes nothing, so that it may run beside others that change nothing."""
        ...

    async def run(self, sandbox: Sandbox, args: Any, *, timeout_s: float) -> ToolResult: ...


class Reads:
    """A tool whose every call changes nothing."""

    def reads_only(self, args: Any) -> bool:
        return True


class Writes:
    """A tool whose every call may change something."""

    def reads_only(self, args: Any) -> bool:
        return False

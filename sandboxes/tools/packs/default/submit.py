"""The tool by which a policy declares its work finished."""

from typing import ClassVar

from pydantic import BaseModel

from sandboxes.interface import Sandbox
from sandboxes.tools.arguments import Arguments
from sandboxes.tools.tool import ToolResult, Writes


class SubmitInput(Arguments):
    """No arguments."""


class Submit(Writes):
    name: ClassVar[str] = "submit"
    description: ClassVar[str] = (
        "Declare the work finished. The files as they are now are judged; nothing can be done after it."
    )
    Input: ClassVar[type[BaseModel]] = SubmitInput

    async def run(self, sandbox: Sandbox, args: SubmitInput, *, timeout_s: float) -> ToolResult:
        return ToolResult("Submitted.", done=True)

"""The tool by which a policy says that it is done."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from sandboxes.sandbox import Sandbox
from sandboxes.tools.tool import ToolResult


class SubmitInput(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Submit:
    name: ClassVar[str] = "submit"
    description: ClassVar[str] = (
        "Declare the work finished. The files as they are now are judged; nothing can be done after it."
    )
    Input: ClassVar[type[BaseModel]] = SubmitInput

    def reads_only(self, args: SubmitInput) -> bool:
        return False

    async def run(self, sandbox: Sandbox, args: SubmitInput, *, timeout_s: float) -> ToolResult:
        return ToolResult("Submitted.", done=True)

"""Read-only variants of a pack's tools."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, Field

from sandboxes.errors import SpecError
from sandboxes.interface import Sandbox
from sandboxes.tools.arguments import Arguments, Name
from sandboxes.tools.packs.default.edit import Edit
from sandboxes.tools.packs.swe_agent import StrReplaceEditor
from sandboxes.tools.tool import Reads, Tool, ToolResult


def read_only_tools(tools: Sequence[Tool]) -> list[Tool]:
    """Return the read-only tools among ``tools``; an editor is replaced by a viewer.

    Raises SpecError if there are none.
    """
    found: list[Tool] = []
    for tool in tools:
        if isinstance(tool, Reads):
            found.append(tool)
        elif isinstance(tool, Edit):
            found.append(ReadOnlyEdit(tool))
        elif isinstance(tool, StrReplaceEditor):
            found.append(ReadOnlyEditor(tool))
    if not found:
        raise SpecError(f"no tool is read-only among {', '.join(tool.name for tool in tools)}; use the default pack")
    return found


class ViewInput(Arguments):
    command: Annotated[Literal["view"], Field(description="What to do.")]
    path: Annotated[Name, Field(description="File or directory; a relative one from the working directory.")]
    view_range: Annotated[
        list[int] | None,
        Field(min_length=2, max_length=2, description="First and last line, from 1; -1 as last is the end."),
    ] = None


class ReadOnlyEdit(Reads):
    """The default pack's editor under its own name, with ``view`` as its only command."""

    name: ClassVar[str] = Edit.name
    description: ClassVar[str] = (
        "View files: a file's lines numbered, or a directory two levels deep without hidden names, node_modules and "
        "__pycache__. Text files up to 8 MiB."
    )
    Input: ClassVar[type[BaseModel]] = ViewInput

    def __init__(self, editor: Tool) -> None:
        self._editor = editor

    async def run(self, sandbox: Sandbox, args: ViewInput, *, timeout_s: float) -> ToolResult:
        arguments = self._editor.Input.model_validate(args.model_dump())
        return await self._editor.run(sandbox, arguments, timeout_s=timeout_s)


class ReadOnlyEditor(ReadOnlyEdit):
    """SWE-agent's editor with ``view`` as its only command."""

    name: ClassVar[str] = StrReplaceEditor.name

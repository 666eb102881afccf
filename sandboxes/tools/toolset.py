"""The tools of one policy: their schemas, and the one door through which its calls go."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from sandboxes.errors import PathError, SpecError
from sandboxes.sandbox import Sandbox
from sandboxes.tools.bash import Bash
from sandboxes.tools.calls import MalformedCall, did_you_mean, parse_arguments, schema_of, unknown_tool
from sandboxes.tools.edit import Edit
from sandboxes.tools.glob import Glob
from sandboxes.tools.grep import Grep
from sandboxes.tools.rendering import clipped, shown_name
from sandboxes.tools.submit import Submit
from sandboxes.tools.terminal import Terminal
from sandboxes.tools.tool import Tool, ToolErrorKind, ToolResult

MAX_CHARS = 30_000


class Toolset:
    """Calls may be made concurrently and for any number of sandboxes; those to one shell, and edits, take their turns.

    No result has more than ``max_chars`` characters.
    """

    def __init__(self, tools: Sequence[Tool], *, max_chars: int = MAX_CHARS) -> None:
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._max_chars = max_chars

    @classmethod
    def default(cls, names: Sequence[str] = (), *, max_chars: int = MAX_CHARS) -> Self:
        """The default pack, or those of its tools that are named. Raises SpecError for a name that is not in it."""
        if max_chars < 2000:
            raise SpecError(f"max_chars is {max_chars}: give at least 2000")
        shell, edit = Bash(Terminal(max_chars)), Edit(max_chars)
        tools: tuple[Tool, ...] = (shell, edit, Grep(max_chars), Glob(max_chars), Submit())
        pack = {tool.name: tool for tool in tools}
        for name in names:
            if name not in pack:
                raise SpecError(f"no tool named {name!r}{did_you_mean(name, pack)}; the tools are {', '.join(pack)}")
        return cls([tool for name, tool in pack.items() if not names or name in names], max_chars=max_chars)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def schemas(self) -> list[dict[str, Any]]:
        """In OpenAI's function form, in the order of the tools; the same text every time."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": schema_of(tool.Input),
                },
            }
            for tool in self._tools.values()
        ]

    async def call(self, sandbox: Sandbox, name: str, arguments: str, *, timeout_s: float) -> ToolResult:
        """Run one call as the policy wrote it, in at most ``timeout_s`` from its turn on; ``duration_s`` is all of it.

        Whatever the policy did wrong comes back as a result. Raises SandboxGone.
        """
        started = time.monotonic()
        try:
            tool = self._tools.get(name)
            if tool is None:
                raise unknown_tool(name, self.names)
            result = await tool.run(sandbox, parse_arguments(tool.Input, arguments), timeout_s=timeout_s)
        except MalformedCall as fault:
            result = ToolResult(f"error: {fault}", error_kind=fault.kind)
        except PathError as fault:
            result = ToolResult(f"error: {shown_name(str(fault))}", error_kind=ToolErrorKind.REFUSED)
        content = clipped(result.content, self._max_chars)
        return replace(
            result,
            content=content,
            truncated=result.truncated or content is not result.content,
            duration_s=time.monotonic() - started,
        )

"""The tools of one policy: their schemas, and the parsing and execution of its calls."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from sandboxes.errors import PathError, SpecError
from sandboxes.interface import Sandbox
from sandboxes.tools.packs import PackParts, choose
from sandboxes.tools.packs.read_only import read_only_tools
from sandboxes.tools.parse_call import MalformedCall, parse_arguments, unknown_tool
from sandboxes.tools.rendering import shown_name
from sandboxes.tools.result_limit import MAX_CHARS, clipped
from sandboxes.tools.schemas import described
from sandboxes.tools.tool import Tool, ToolErrorKind, ToolResult

if TYPE_CHECKING:
    from sandboxes.search.index_store import IndexStore


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call with validated arguments, ready to run."""

    tool: Tool
    arguments: BaseModel

    @property
    def reads_only(self) -> bool:
        return self.tool.reads_only(self.arguments)


class Toolset:
    """A set of tools for one policy.

    Calls may run concurrently and for any number of sandboxes. Calls to one shell run one at a time, and so do edits in
    one sandbox. No result has more than ``max_chars`` characters.
    """

    def __init__(self, tools: Sequence[Tool], *, pack: str = "", max_chars: int = MAX_CHARS) -> None:
        self.pack = pack
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._max_chars = max_chars

    @classmethod
    def of(
        cls, words: Sequence[str] = (), *, max_chars: int = MAX_CHARS, index_store: "IndexStore | None" = None
    ) -> Self:
        """Build the toolset that ``words`` select (see ``choose``); without words, all tools of the default pack.

        Raises SpecError if a word names neither a pack nor a tool.
        """
        if max_chars < 2000:
            raise SpecError(f"max_chars is {max_chars}, which is too small; use at least 2000")
        choice = choose(words)
        return cls(choice.make(PackParts.of(max_chars, index_store)), pack=choice.pack.name, max_chars=max_chars)

    def only_reading(self, *more: Tool) -> Self:
        """Return a toolset of the read-only tools and ``more``. Raises SpecError if no tool is read-only."""
        return type(self)(
            [*read_only_tools(list(self._tools.values())), *more], pack=self.pack, max_chars=self._max_chars
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def schemas(self) -> list[dict[str, Any]]:
        """Return the schemas in OpenAI's function form, in the order of the tools.

        The text is the same for every call.
        """
        return [described(type(tool), "openai") for tool in self._tools.values()]

    def prepare(self, name: str, arguments: str) -> PreparedCall | MalformedCall:
        """Parse a call as the policy wrote it. ``run`` accepts either return type."""
        try:
            tool = self._tools.get(name)
            if tool is None:
                raise unknown_tool(name, self.names)
            return PreparedCall(tool, parse_arguments(tool.Input, arguments))
        except MalformedCall as fault:
            return fault

    async def call(self, sandbox: Sandbox, name: str, arguments: str, *, timeout_s: float) -> ToolResult:
        """Prepare and run a call."""
        return await self.run(sandbox, self.prepare(name, arguments), timeout_s=timeout_s)

    async def run(self, sandbox: Sandbox, call: PreparedCall | MalformedCall, *, timeout_s: float) -> ToolResult:
        """Run a call for at most ``timeout_s``, counted after the wait for its lock; ``duration_s`` includes the wait.

        Errors of the policy are returned as a result. Raises SandboxGone.
        """
        started = time.monotonic()
        try:
            if isinstance(call, MalformedCall):
                raise call
            result = await call.tool.run(sandbox, call.arguments, timeout_s=timeout_s)
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

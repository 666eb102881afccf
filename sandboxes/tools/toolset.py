"""The tools of one policy: their schemas, and the one door through which its calls go."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

from sandboxes.errors import PathError, SpecError
from sandboxes.interface import Sandbox
from sandboxes.tools.packs import PackParts, choose
from sandboxes.tools.packs.read_only import readers
from sandboxes.tools.parse_call import MalformedCall, parse_arguments, unknown_tool
from sandboxes.tools.rendering import clipped, shown_name
from sandboxes.tools.schemas import described
from sandboxes.tools.tool import Tool, ToolErrorKind, ToolResult

if TYPE_CHECKING:
    from sandboxes.search.index_store import IndexStore

MAX_CHARS = 30_000


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is fit to be run."""

    tool: Tool
    arguments: BaseModel

    @property
    def reads_only(self) -> bool:
        return self.tool.reads_only(self.arguments)


class Toolset:
    """Calls may be made concurrently and for any number of sandboxes; those to one shell, and edits, take their turns.

    No result has more than ``max_chars`` characters.
    """

    def __init__(self, tools: Sequence[Tool], *, pack: str = "", max_chars: int = MAX_CHARS) -> None:
        self.pack = pack
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._max_chars = max_chars

    @classmethod
    def of(cls, words: Sequence[str] = (), *, max_chars: int = MAX_CHARS, library: "IndexStore | None" = None) -> Self:
        """The tools that ``words`` ask for, as ``choose`` reads them: without any, all of the default pack.

        Raises SpecError for what is no pack and no tool.
        """
        if max_chars < 2000:
            raise SpecError(f"max_chars is {max_chars}: give at least 2000")
        choice = choose(words)
        return cls(choice.make(PackParts.of(max_chars, library)), pack=choice.pack.name, max_chars=max_chars)

    def only_reading(self, *more: Tool) -> Self:
        """The tools of it that change nothing, and ``more``. Raises SpecError where there are none."""
        return type(self)([*readers(list(self._tools.values())), *more], pack=self.pack, max_chars=self._max_chars)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def schemas(self) -> list[dict[str, Any]]:
        """In OpenAI's function form, in the order of the tools; the same text every time."""
        return [described(type(tool), "openai") for tool in self._tools.values()]

    def prepare(self, name: str, arguments: str) -> PreparedCall | MalformedCall:
        """A call as the policy wrote it, understood or not; ``run`` takes either."""
        try:
            tool = self._tools.get(name)
            if tool is None:
                raise unknown_tool(name, self.names)
            return PreparedCall(tool, parse_arguments(tool.Input, arguments))
        except MalformedCall as fault:
            return fault

    async def call(self, sandbox: Sandbox, name: str, arguments: str, *, timeout_s: float) -> ToolResult:
        """``prepare`` and ``run``."""
        return await self.run(sandbox, self.prepare(name, arguments), timeout_s=timeout_s)

    async def run(self, sandbox: Sandbox, call: PreparedCall | MalformedCall, *, timeout_s: float) -> ToolResult:
        """Run a call, in at most ``timeout_s`` from its turn on; ``duration_s`` is all of it.

        Whatever the policy did wrong comes back as a result. Raises SandboxGone.
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

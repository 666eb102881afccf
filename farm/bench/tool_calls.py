"""Calls of tools as a policy makes them, timed."""

import json
import time
from collections.abc import Sequence
from typing import Any

from farm.bench.results import BenchError
from farm.episode.tool_calls import CallLimits, run_calls
from farm.policy.base import ToolCall
from sandboxes import Sandbox
from sandboxes.search.index_store import IndexStore
from sandboxes.tools import Toolset
from sandboxes.tools.tool import ToolResult

EDIT = "str_replace_based_edit_tool"
TIMEOUT_S = 60.0


class BenchCalls:
    """A toolset, as ``Toolset.of`` makes it; a call that does not do what it should is a BenchError."""

    def __init__(self, *words: str, library: IndexStore | None = None) -> None:
        self._tools = Toolset.of(words, index_store=library)

    async def run_true(self, sandbox: Sandbox) -> float:
        """The ``bash`` tool with the command ``true``; the seconds it took."""
        return await self.use(sandbox, "bash", _TRUE)

    async def use(self, sandbox: Sandbox, tool: str, arguments: str) -> float:
        """One call with ``arguments`` as JSON; the seconds it took."""
        began = time.perf_counter()
        await self.hear(sandbox, tool, arguments)
        return time.perf_counter() - began

    async def hear(self, sandbox: Sandbox, tool: str, arguments: str) -> str:
        """What one call answers."""
        result = await self._tools.call(sandbox, tool, arguments, timeout_s=TIMEOUT_S)
        return _content(sandbox, tool, result)

    async def use_at_once(self, sandbox: Sandbox, calls: Sequence[tuple[str, str]]) -> float:
        """Calls (tool and arguments) of one turn, run as an episode runs them; the seconds they took together."""
        results: list[ToolResult | None] = [None] * len(calls)
        asked = [ToolCall(str(number), *call) for number, call in enumerate(calls)]
        began = time.perf_counter()
        await run_calls(self._tools, sandbox, asked, results, CallLimits(TIMEOUT_S))
        took_s = time.perf_counter() - began
        for call, result in zip(asked, results, strict=True):
            assert result is not None
            _content(sandbox, call.name, result)
        return took_s


def written(**arguments: Any) -> str:
    """Arguments as a policy writes them."""
    return json.dumps(arguments)


def _content(sandbox: Sandbox, tool: str, result: ToolResult) -> str:
    if result.error_kind is not None or result.exit_code not in (None, 0):
        raise BenchError(f"a call of {tool} failed in sandbox {sandbox.id}: {result.content[:200]}")
    return result.content


_TRUE = written(command="true")

"""Time tool calls in the form in which a policy makes them."""

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
    """Calls tools of a toolset. Raises BenchError if a call fails."""

    def __init__(self, *words: str, index_store: IndexStore | None = None) -> None:
        self._tools = Toolset.of(words, index_store=index_store)

    async def run_true(self, sandbox: Sandbox) -> float:
        """Run ``true`` by the ``bash`` tool; return the seconds."""
        return await self.time_call(sandbox, "bash", _TRUE)

    async def time_call(self, sandbox: Sandbox, tool: str, arguments: str) -> float:
        """Make one call with ``arguments`` as JSON; return the seconds."""
        began = time.perf_counter()
        await self.result_text(sandbox, tool, arguments)
        return time.perf_counter() - began

    async def result_text(self, sandbox: Sandbox, tool: str, arguments: str) -> str:
        """Make one call and return the text of its result."""
        result = await self._tools.call(sandbox, tool, arguments, timeout_s=TIMEOUT_S)
        return _content_of(sandbox, tool, result)

    async def time_concurrent(self, sandbox: Sandbox, calls: Sequence[tuple[str, str]]) -> float:
        """Run calls (tool and arguments) of one turn as an episode does; return the seconds of all together."""
        results: list[ToolResult | None] = [None] * len(calls)
        tool_calls = [ToolCall(str(number), *call) for number, call in enumerate(calls)]
        began = time.perf_counter()
        await run_calls(self._tools, sandbox, tool_calls, results, CallLimits(TIMEOUT_S))
        took_s = time.perf_counter() - began
        for call, result in zip(tool_calls, results, strict=True):
            assert result is not None
            _content_of(sandbox, call.name, result)
        return took_s


def to_json(**arguments: Any) -> str:
    """Serialize arguments as a policy writes them."""
    return json.dumps(arguments)


def _content_of(sandbox: Sandbox, tool: str, result: ToolResult) -> str:
    if result.error_kind is not None or result.exit_code not in (None, 0):
        raise BenchError(f"a call of {tool} failed in sandbox {sandbox.id}: {result.content[:200]}")
    return result.content


_TRUE = to_json(command="true")

"""The tool calls of one turn: side by side where that cannot be told apart, in order where it can."""

import asyncio
import json
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from farm.rollout.policy import ToolCall
from sandboxes.sandbox import Sandbox
from sandboxes.tools import Toolset
from sandboxes.tools.tool import ToolResult

PARALLEL_CALLS = 8
_READERS = frozenset({"grep", "glob"})
_EDITOR = "str_replace_based_edit_tool"


async def run_calls(
    toolset: Toolset,
    sandbox: Sandbox,
    calls: Sequence[ToolCall],
    results: list[ToolResult | None],
    *,
    timeout_s: float,
) -> None:
    """Put the result of ``calls[i]`` into ``results[i]``; ``timeout_s`` bounds each call.

    Neighbouring calls that only read run in parallel. A call that ends the work leaves those after it without a
    result, and so does a cancellation. Raises SandboxGone; other calls are over by then.
    """
    free = asyncio.Semaphore(PARALLEL_CALLS)

    async def run(index: int) -> None:
        call = calls[index]
        async with free:
            results[index] = await toolset.call(sandbox, call.name, call.arguments, timeout_s=timeout_s)

    for stretch in _stretches(calls):
        if len(stretch) == 1:
            await run(stretch[0])
        else:
            await _side_by_side([run(index) for index in stretch])
        last = results[stretch[-1]]
        if last is not None and last.done:
            return


async def _side_by_side(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _stretches(calls: Sequence[ToolCall]) -> Iterator[list[int]]:
    """Indices of ``calls`` in order: readers side by side together, every other call by itself."""
    stretch: list[int] = []
    for index, call in enumerate(calls):
        if _only_reads(call):
            stretch.append(index)
            continue
        if stretch:
            yield stretch
            stretch = []
        yield [index]
    if stretch:
        yield stretch


def _only_reads(call: ToolCall) -> bool:
    if call.name in _READERS:
        return True
    if call.name != _EDITOR:
        return False
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return False
    return isinstance(arguments, dict) and arguments.get("command") == "view"

"""The tool calls of one turn: side by side where that cannot be told apart, in order where it can."""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from farm.episode.journal import TurnJournal
from farm.policy.base import ToolCall
from sandboxes.errors import AnswerLost
from sandboxes.interface import Sandbox
from sandboxes.tools import Toolset
from sandboxes.tools.packs.answer import Answer
from sandboxes.tools.parse_call import MalformedCall
from sandboxes.tools.tool import ToolErrorKind, ToolResult

PARALLEL_CALLS = 8
MOST_CALLS = 128
"""Calls of one message that run; each further call gets an error result."""
_CUT_OFF = ToolResult(
    "error: the call was cut off by a failure of this machine, and what came of it is not known: some of it may have "
    "been done; look before you repeat it",
    ToolErrorKind.REFUSED,
)


async def run_calls(
    toolset: Toolset,
    sandbox: Sandbox,
    calls: Sequence[ToolCall],
    results: list[ToolResult | None],
    log: TurnJournal | None = None,
    *,
    timeout_s: float,
    most: int = MOST_CALLS,
) -> None:
    """Put the result of ``calls[i]`` into ``results[i]`` and into ``log``; ``timeout_s`` bounds each call.

    One that has its result already is not run; one that was cut off, as ``log`` has it, goes on: nothing is done twice.

    Neighbouring calls that only read run in parallel. A call that ends the work leaves those after it without a
    result, and so does a cancellation. Calls past the ``most`` are refused; an answer is none of them. Raises
    SandboxGone; other calls are over by then.
    """
    free = asyncio.Semaphore(PARALLEL_CALLS)
    over = set([index for index, call in enumerate(calls) if call.name != Answer.name][most:])
    refused = MalformedCall(ToolErrorKind.OVER_LIMIT, f"not run: only the first {most} calls of a message are")
    prepared = [
        refused if index in over else toolset.prepare(call.name, call.arguments) for index, call in enumerate(calls)
    ]

    async def run(index: int) -> None:
        if results[index] is not None:
            return
        async with free:
            try:
                with log.call(index, reads_only=prepared[index].reads_only) if log else contextlib.nullcontext():
                    result = await toolset.run(sandbox, prepared[index], timeout_s=timeout_s)
            except AnswerLost:
                result = _CUT_OFF
        results[index] = result
        if log:
            log.ended(index, result)

    for stretch in _stretches([call.reads_only for call in prepared]):
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


def _stretches(reads_only: Sequence[bool]) -> Iterator[list[int]]:
    """The indices in order: readers side by side together, every other call by itself."""
    stretch: list[int] = []
    for index, reader in enumerate(reads_only):
        if reader:
            stretch.append(index)
            continue
        if stretch:
            yield stretch
            stretch = []
        yield [index]
    if stretch:
        yield stretch

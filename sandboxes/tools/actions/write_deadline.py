"""The time limit of a call that writes: extended once the write begins, so that its outcome becomes known."""

import asyncio
from types import TracebackType
from typing import Self

from sandboxes.tools.tool import ToolResult, timed_out

WRITING_S = 30.0


class WriteDeadline:
    """A time limit as a context manager: ``async with WriteDeadline(limit_s) as writing``.

    If a TimeoutError leaves the block, ``timed_out`` gives the result for the policy.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._has_begun = False

    async def __aenter__(self) -> Self:
        self._timeout = asyncio.timeout(self._limit_s)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    def begin(self) -> None:
        """Mark the start of the write and allow WRITING_S more, so that the policy learns the outcome of the write."""
        self._has_begun = True
        self._timeout.reschedule(asyncio.get_running_loop().time() + WRITING_S)

    def timed_out(self) -> ToolResult:
        return timed_out(
            self._limit_s + WRITING_S * self._has_begun,
            "it may have been written or not: look before you go on" if self._has_begun else "nothing was changed",
        )

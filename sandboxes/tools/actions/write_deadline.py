"""The time that a call has which writes: until it begins to write, and then long enough to know what came of that."""

import asyncio
from types import TracebackType
from typing import Self

from sandboxes.tools.tool import ToolResult, timed_out

WRITING_S = 30.0


class WriteDeadline:
    """``async with Writing(limit_s) as writing``; a TimeoutError that comes out of it is told by ``timed_out``."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._begun = False

    async def __aenter__(self) -> Self:
        self._timeout = asyncio.timeout(self._limit_s)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    def begin(self) -> None:
        """What was asked for is being written from now on: whoever asked is to hear whether it was."""
        self._begun = True
        self._timeout.reschedule(asyncio.get_running_loop().time() + WRITING_S)

    def timed_out(self) -> ToolResult:
        return timed_out(
            self._limit_s + WRITING_S * self._begun,
            "it may have been written or not: look before you go on" if self._begun else "nothing was changed",
        )

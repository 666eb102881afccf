"""The answers that a fake sandbox remembers, as the tool server does."""

import asyncio
from collections.abc import Awaitable

from sandboxes.errors import SpecError
from sandboxes.interface import Capture, ExecResult

CANCELLED = ExecResult(None, Capture(b""), Capture(b""), timed_out=True, duration_s=0.0)
"""A command that is cancelled ends as at its time-out."""


class Answers:
    def __init__(self) -> None:
        self._known: dict[str, tuple[object, asyncio.Future[ExecResult]]] = {}

    def knows(self, call_id: str) -> bool:
        return call_id in self._known

    async def repeat(self, call_id: str, asked: object) -> ExecResult:
        """The result of the first call of this id. Raises SpecError for another call."""
        first, answer = self._known[call_id]
        if first != asked:
            raise SpecError(f"call {call_id!r} belongs to a different call; use a new id for each call")
        return await asyncio.shield(answer)

    async def keep(self, call_id: str, asked: object, work: Awaitable[ExecResult]) -> ExecResult:
        """The result of a first call."""
        answer: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self._known[call_id] = (asked, answer)
        try:
            result = await work
        except BaseException:
            answer.set_result(CANCELLED)
            raise
        answer.set_result(result)
        return result

"""The idempotency records of a fake sandbox: results by call id, as in the tool server."""

import asyncio
from collections.abc import Awaitable

from sandboxes.errors import SpecError
from sandboxes.interface import Capture, ExecResult

CANCELLED = ExecResult(None, Capture(b""), Capture(b""), timed_out=True, duration_s=0.0)
"""The result of a cancelled command: the same as after a time-out."""


class CallResults:
    def __init__(self) -> None:
        self._calls: dict[str, tuple[object, asyncio.Future[ExecResult]]] = {}

    def has(self, call_id: str) -> bool:
        return call_id in self._calls

    async def repeat(self, call_id: str, call: object) -> ExecResult:
        """Return the result of the first call with this id. Raises SpecError if the calls differ."""
        first, answer = self._calls[call_id]
        if first != call:
            raise SpecError(f"call {call_id!r} belongs to a different call; use a new id for each call")
        return await asyncio.shield(answer)

    async def keep(self, call_id: str, call: object, work: Awaitable[ExecResult]) -> ExecResult:
        """Run a first call and record its result."""
        answer: asyncio.Future[ExecResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = (call, answer)
        try:
            result = await work
        except BaseException:
            answer.set_result(CANCELLED)
            raise
        answer.set_result(result)
        return result

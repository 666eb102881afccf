"""One generation request over HTTP: its fault, if one is planned, and the end of its work if the client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from farm.model_server.engine import Engine
from farm.model_server.faults import Fault, Faults
from farm.model_server.generation import Disturbance, Generation

TRANSPORT = "farm.transport"
"""The key of the connection in a request's scope."""

Start = Callable[[Disturbance], Generation]
Whole = Callable[[Generation], Mapping[str, Any]]
Stream = Callable[[Generation], AsyncIterator[bytes]]
DONE = b"data: [DONE]\n\n"
ErrorBody = Callable[[int, str, str | None], dict[str, Any]]

_GARBAGE = b'{"id": "garbage", "choices": [<html>'


@dataclass(frozen=True, slots=True)
class Exchange:
    """The engine, its faults and its name. ``error`` makes the body of an error answer."""

    engine: Engine
    model: str
    error: ErrorBody
    faults: Faults = field(default_factory=Faults)

    async def answer(self, request: Request, start: Start, whole: Whole, stream: Stream | None) -> Response:
        """Answer with a whole document, or with a stream if ``stream`` is set. The request's body was read before."""
        fault = self.faults.take()
        if fault is not None:
            instead = await self._instead(request, fault)
            if instead is not None:
                return instead
        generation = start(fault.disturbance() if fault else Disturbance())
        drop_after = (fault.after_tokens or 1) if fault and fault.kind == "drop_during" else None
        if stream is not None:
            events = self._events(request, generation, stream, drop_after)
            return StreamingResponse(events, media_type="text/event-stream")
        if not await self._wait(request, generation.ended):
            self.engine.abort(generation)
        document = whole(generation)
        return JSONResponse(document) if drop_after is None else _CutResponse(json.dumps(document).encode())

    async def _instead(self, request: Request, fault: Fault) -> Response | None:
        """Return the answer of a fault in place of a reply, or None if a reply follows."""
        match fault.kind:
            case "status":
                status = fault.status or 500
                headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
                return JSONResponse(self.error(status, "this failure was planned", None), status, headers)
            case "garbage":
                return Response(_GARBAGE, media_type="application/json")
            case "hang":
                await self._wait(request, self.engine.closed)
                return Response(status_code=503)
            case "delay":
                with suppress(TimeoutError):
                    async with asyncio.timeout(fault.seconds):
                        await self._wait(request, self.engine.closed)
                return None
            case "drop_before":
                request.scope[TRANSPORT].close()
                await self._wait(request, self.engine.closed)
                return Response(status_code=503)
            case _:
                return None

    async def _events(
        self, request: Request, generation: Generation, stream: Stream, drop_after: int | None
    ) -> AsyncIterator[bytes]:
        try:
            async for item in stream(generation):
                yield item
                if drop_after is not None and len(generation.tokens) >= drop_after:
                    request.scope[TRANSPORT].close()
                    await _left(request.receive)
        finally:
            self.engine.abort(generation)

    async def _wait(self, request: Request, event: asyncio.Event) -> bool:
        """Wait for an event. Return False if the client left before."""
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(_left(request.receive))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return event.is_set()


def event(document: Mapping[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(document).encode() + b"\n\n"


async def _left(receive: Receive) -> None:
    """Return when the connection is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _CutResponse(Response):
    """An answer of which half is sent before the connection closes."""

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body[: len(self.body) // 2], "more_body": True})
        scope[TRANSPORT].close()
        await _left(receive)

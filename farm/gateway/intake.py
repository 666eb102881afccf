"""What reaches a route: a known host, a known caller, and a whole body within bounds that is JSON and sane."""

import asyncio
from urllib.parse import urlsplit

import pydantic_core
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from farm.config import LOOPBACK
from farm.gateway.auth import Gatekeeper
from farm.gateway.refusals import Refused
from farm.wire.problem import ProblemType

MOST_BODY_BYTES = 1024 * 1024
BODY_S = 30.0
FOR_ANYBODY = ("/healthz", "/readyz", "/openapi.json")
_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class Intake:
    """ASGI middleware: who is not known is refused before a byte of the body is read.

    A gateway without tokens takes only loopback's names as ``Host``. Without that, and without asking for JSON's
    content type, a web page in a browser of this machine could drive it.
    """

    def __init__(self, app: ASGIApp, gatekeeper: Gatekeeper) -> None:
        self._app = app
        self._gatekeeper = gatekeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            self._check_host(headers.get(b"host", b"").decode("latin-1"))
            _check_announced(headers)
            if scope["path"] not in FOR_ANYBODY:
                self._gatekeeper.admit(scope, headers.get(b"authorization", b""))
            body = await _read(headers, receive) if scope["method"] in _WITH_BODY else None
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        await self._app(scope, receive if body is None else _replayed(body, receive), send)

    def _check_host(self, host: str) -> None:
        if self._gatekeeper.open and _name_of(host) not in LOOPBACK:
            raise Refused(
                ProblemType.FORBIDDEN,
                "a gateway without tokens answers only to loopback names, such as 127.0.0.1, in the Host header",
            )


def _check_announced(headers: dict[bytes, bytes]) -> None:
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and (len(announced) > 18 or int(announced) > MOST_BODY_BYTES):
        raise _too_large()


def _too_large() -> Refused:
    return Refused(ProblemType.TOO_LARGE, f"at most {MOST_BODY_BYTES} bytes are taken")


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def _read(headers: dict[bytes, bytes], receive: Receive) -> bytes:
    try:
        async with asyncio.timeout(BODY_S):
            body = await _collect(receive)
    except TimeoutError:
        raise Refused(ProblemType.TIMEOUT, f"the body did not arrive within {BODY_S:.0f} s") from None
    if not body:
        return body
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Refused(ProblemType.UNSUPPORTED_MEDIA, "send Content-Type: application/json")
    try:
        pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise Refused(ProblemType.MALFORMED, str(error)[:300]) from None
    return body


async def _collect(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        body += message.get("body", b"")
        if len(body) > MOST_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body again, then whatever the connection says next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay

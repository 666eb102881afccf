"""One connection of a sandbox to its proxy: one request, which is refused, forwarded, or granted a tunnel."""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import h11

from sandboxes.egress.addresses import Address
from sandboxes.egress.allowlist import HTTPS_PORT, AllowList, Host, Pattern, parse_host, show
from sandboxes.egress.log import EgressDecision, EgressLog, EgressRecord
from sandboxes.egress.proxy_request import HEAD_BYTES_MAX, ProxyRequest, RequestRefused, parse_proxy_request
from sandboxes.egress.tls_sni import HelloState, SniParser
from sandboxes.egress.upstream import ProxyRefused, UpstreamProxies, UpstreamProxy

CHUNK = 32 * 1024
HEAD_CHUNK = 4 * 1024
HELLO_BYTES_MAX = 64 * 1024
LINGER_S = 2.0
"""For the client to read why it was refused."""

Resolve = Callable[[Host, int], Awaitable[list[Address]]]
"""Finds the addresses that a host may be reached at, some at least. Raises Refusal, or OSError."""


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What one sandbox may take of its proxy.

    ``connections`` are served at once. ``head_s`` is for all of what says where a connection wants to go, ``address_s``
    for one address of a host, ``connect_s`` for finding and trying them all, ``idle_s`` how long nothing may move.
    """

    connections: int = 32
    head_s: float = 10.0
    address_s: float = 5.0
    connect_s: float = 20.0
    idle_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Routes:
    """How hosts are reached: at the addresses that ``resolve`` finds, or through the operator's own proxies."""

    resolve: Resolve
    upstreams: UpstreamProxies


@dataclass(frozen=True, slots=True)
class _Stream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


class ProxyConnection:
    """``run`` it once. What came of it goes into ``log``, unless the client left without a word."""

    def __init__(
        self, sandbox_id: str, allowed: AllowList, bounds: ProxyLimits, routes: Routes, log: EgressLog
    ) -> None:
        self._sandbox_id = sandbox_id
        self._allowed = allowed
        self._bounds = bounds
        self._routes = routes
        self._log = log
        self._host = ""
        self._port = 0
        self._verdict: EgressDecision | None = None
        self._reason = ""
        self._bytes_out = self._bytes_in = 0
        self._idle = asyncio.timeout(None)
        self._tunnelled = False

    async def run(self, client: socket.socket) -> None:
        """Raises nothing but a cancellation, which cuts off both ends."""
        at, started = time.time(), time.monotonic()
        try:
            await self._run(client)
        except asyncio.CancelledError:
            self._reason = self._reason or "the way out was shut"
            raise
        finally:
            self._record(at, time.monotonic() - started)

    async def _run(self, client: socket.socket) -> None:
        try:
            stream = _Stream(*await asyncio.open_connection(sock=client, limit=CHUNK))
            async with _closing(stream, self._bounds.idle_s) as inside:
                await self._serve(inside)
        except* TimeoutError:
            self._reason = self._reason or f"nothing moved for {self._bounds.idle_s:g} s"
        except* OSError:
            self._reason = self._reason or "the connection broke"
        except* h11.RemoteProtocolError:
            self._reason = "the body is not what it was said to be"

    def _record(self, at: float, duration_s: float) -> None:
        if self._verdict is not None:
            self._log.add(
                EgressRecord(
                    at,
                    self._sandbox_id,
                    self._host,
                    self._port,
                    self._verdict,
                    self._reason,
                    self._bytes_out,
                    self._bytes_in,
                    duration_s,
                )
            )

    async def _serve(self, inside: _Stream) -> None:
        try:
            await self._grant(inside)
        except RequestRefused as refusal:
            self._verdict, self._reason = refusal.verdict, str(refusal)
            if not self._tunnelled:
                await _answer(inside, refusal)

    async def _grant(self, inside: _Stream) -> None:
        """Raises Refusal."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        request = await _request(inside, parser, self._bounds.head_s)
        if request is None:
            return
        asked = parse_proxy_request(request)
        self._host, self._port = str(asked.host), asked.port
        where = show(asked.host, asked.port)
        pattern = self._allowed.find(asked.host, asked.port)
        if pattern is None:
            raise RequestRefused(HTTPStatus.FORBIDDEN, f"{where} is not among the hosts that this sandbox may reach")
        if pattern.vouched and (asked.forward is None) is not (asked.port == HTTPS_PORT):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, f"{where}: only plain HTTP goes to port 80, and only TLS to port 443"
            )
        idle_s = self._bounds.idle_s
        upstream = self._routes.upstreams.find(asked.host, asked.port, is_tunnel=asked.forward is None)
        outside = await (self._reach(asked.host, asked.port) if upstream is None else self._reach_by(upstream, asked))
        async with _closing(outside, idle_s), asyncio.timeout(idle_s) as self._idle:
            if asked.forward is not None:
                carried = upstream.carry(asked.forward, asked.host, asked.port) if upstream else asked.forward
                await self._forward(carried, parser, inside, outside)
            else:
                await self._tunnel(pattern, asked.host, parser.trailing_data[0], inside, outside)

    async def _reach(self, host: Host, port: int) -> _Stream:
        """Connect to one of the addresses that were checked, and to no other. Raises Refusal."""
        try:
            async with asyncio.timeout(self._bounds.connect_s):
                permitted = await self._routes.resolve(host, port)
                self._verdict = (
                    EgressDecision.ALLOWED
                )  # from now on something may arrive there, also if the way is shut amid
                return await _dial(permitted, port, self._bounds.address_s)
        except TimeoutError:
            raise _unreachable(HTTPStatus.GATEWAY_TIMEOUT, host, port, "no answer") from None
        except socket.gaierror:
            raise _unreachable(HTTPStatus.BAD_GATEWAY, host, port, "its name is not known") from None
        except OSError as error:
            raise _unreachable(HTTPStatus.BAD_GATEWAY, host, port, os.strerror(error.errno or 0)) from None

    async def _reach_by(self, upstream: UpstreamProxy, asked: ProxyRequest) -> _Stream:
        """Connect to the operator's proxy, which resolves names. Raises Refusal."""
        host, port = asked.host, asked.port
        try:
            async with asyncio.timeout(self._bounds.connect_s):
                if not isinstance(host, str):
                    await self._routes.resolve(host, port)  # an address is checked like any other
                self._verdict = EgressDecision.ALLOWED
                way = asyncio.open_connection(upstream.host, upstream.port, limit=CHUNK, ssl=upstream.tls)
                async with contextlib.AsyncExitStack() as opened:
                    stream = _Stream(*await way)
                    opened.callback(stream.writer.transport.abort)
                    if asked.forward is None:
                        await upstream.open_tunnel(stream.reader, stream.writer, host, port)
                    opened.pop_all()
                    return stream
        except TimeoutError:
            raise _unreachable(HTTPStatus.GATEWAY_TIMEOUT, host, port, "no answer by the operator's proxy") from None
        except OSError:
            raise _unreachable(HTTPStatus.BAD_GATEWAY, host, port, "the operator's proxy is not there") from None
        except ProxyRefused as error:
            raise _unreachable(HTTPStatus.BAD_GATEWAY, host, port, str(error)) from None

    async def _tunnel(self, pattern: Pattern, host: Host, first: bytes, inside: _Stream, outside: _Stream) -> None:
        self._tunnelled = True
        await inside.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        if pattern.vouched:
            first = await _greeting(inside, host, first, self._bounds.head_s)
        await self._send_on(first, outside)
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(inside, outside, self._went_out))
            both.create_task(_copy(outside, inside, self._came_in))

    async def _forward(self, request: h11.Request, parser: h11.Connection, inside: _Stream, outside: _Stream) -> None:
        """One request, and whatever comes back until the host closes; what the client sends beyond it goes nowhere."""
        async with asyncio.TaskGroup() as both:
            sending = both.create_task(self._send(request, parser, inside, outside))
            await _copy(outside, inside, self._came_in)
            sending.cancel()

    async def _send(self, request: h11.Request, parser: h11.Connection, inside: _Stream, outside: _Stream) -> None:
        sender = h11.Connection(h11.CLIENT)
        event: h11.Event = request
        while not isinstance(event, h11.EndOfMessage):
            await self._send_on(sender.send(event), outside)
            event = await _event(inside, parser)
        # Not the client's own, which may carry trailers.
        await self._send_on(sender.send(h11.EndOfMessage()), outside)

    async def _send_on(self, data: bytes | None, outside: _Stream) -> None:
        if data:
            await outside.send(data)
            self._went_out(len(data))

    def _went_out(self, count: int) -> None:
        self._bytes_out += count
        self._stir()

    def _came_in(self, count: int) -> None:
        self._bytes_in += count
        self._stir()

    def _stir(self) -> None:
        if not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + self._bounds.idle_s)


@contextlib.asynccontextmanager
async def _closing(stream: _Stream, wait_s: float) -> AsyncIterator[_Stream]:
    """What was written has left at the end, unless that comes by an error: then both directions are cut off."""
    try:
        yield stream
        stream.writer.close()
        async with asyncio.timeout(wait_s):
            await stream.writer.wait_closed()
    finally:
        stream.writer.transport.abort()


async def _dial(addresses: Sequence[Address], port: int, each_s: float) -> _Stream:
    """Raises OSError where none of them answers."""
    failure = OSError()
    for address in addresses:
        try:
            async with asyncio.timeout(each_s):
                return _Stream(*await asyncio.open_connection(str(address), port, limit=CHUNK))
        except OSError as error:
            failure = error
    raise failure


def _unreachable(status: HTTPStatus, host: Host, port: int, why: str) -> RequestRefused:
    return RequestRefused(status, f"{show(host, port)} cannot be reached: {why}", EgressDecision.FAILED)


async def _request(inside: _Stream, parser: h11.Connection, within_s: float) -> h11.Request | None:
    """None where the client left without a word. Raises Refusal."""
    try:
        async with asyncio.timeout(within_s):
            # In small pieces: the parser weighs what is not yet whole.
            event = await _event(inside, parser, HEAD_CHUNK)
    except TimeoutError:
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, f"no whole request came within {within_s:g} s") from None
    except h11.RemoteProtocolError as error:
        raise RequestRefused(
            HTTPStatus(error.error_status_hint), "this is not an HTTP request that a proxy takes"
        ) from None
    return event if isinstance(event, h11.Request) else None


async def _event(inside: _Stream, parser: h11.Connection, chunk: int = CHUNK) -> h11.Event:
    """Raises h11.RemoteProtocolError."""
    while (event := parser.next_event()) is h11.NEED_DATA:
        parser.receive_data(await inside.reader.read(chunk))
    assert isinstance(event, h11.Event)  # it pauses after a whole message, and one is all that is read
    return event


async def _greeting(inside: _Stream, host: Host, first: bytes, within_s: float) -> bytes:
    """What a TLS client says first, when it says it to ``host``. Raises Refusal.

    Many hosts share an address, and a tunnel to one is a tunnel to all; by this name the far end tells them apart.
    """
    reader, seen, data = SniParser(), b"", first
    try:
        async with asyncio.timeout(within_s):
            while (name := reader.feed(data)) is HelloState.UNFINISHED and len(seen) < HELLO_BYTES_MAX:
                seen += data
                data = await inside.reader.read(CHUNK)
                if not data:
                    break
    except TimeoutError:
        name = HelloState.UNFINISHED
    if not isinstance(name, str) or not _names(name, host):
        used = repr(name) if isinstance(name, str) else name.value
        raise RequestRefused(
            HTTPStatus.FORBIDDEN, f"the tunnel to {host} is for TLS that asks for that name, not for {used}"
        )
    return seen + data


def _names(name: str, host: Host) -> bool:
    try:
        return parse_host(name) == host
    except ValueError:
        return False


async def _copy(source: _Stream, sink: _Stream, count: Callable[[int], None]) -> None:
    while data := await source.reader.read(CHUNK):
        await sink.send(data)
        count(len(data))
    if sink.writer.can_write_eof():
        sink.writer.write_eof()
    else:  # TLS has no end of one direction
        sink.writer.close()


async def _answer(inside: _Stream, refusal: RequestRefused) -> None:
    """And hear the client out for a moment: closing on what it still sends would take the answer away from it."""
    body = f"{refusal}\n".encode()
    head = (
        f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    await inside.send(head.encode("ascii") + body)
    inside.writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while await inside.reader.read(CHUNK):
                pass

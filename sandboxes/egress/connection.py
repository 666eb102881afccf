"""Serve one connection of a sandbox to its proxy: one request, which is refused, forwarded, or answered
with a tunnel.
"""

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
"""Seconds for which the client may read the refusal."""

Resolve = Callable[[Host, int], Awaitable[list[Address]]]
"""Resolves a host to the addresses that may be reached, at least one. Raises RequestRefused, or OSError."""


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits of the proxy of one sandbox.

    ``connections``: maximum concurrent connections. Time limits: ``head_s`` for the head of a request and for the TLS
    client hello, ``address_s`` to connect to one address, ``connect_s`` to resolve a host and try all its addresses,
    ``idle_s`` without any data.
    """

    connections: int = 32
    head_s: float = 10.0
    address_s: float = 5.0
    connect_s: float = 20.0
    idle_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Routes:
    """Connects to hosts: at the addresses that ``resolve`` returns, or through the operator's own proxies."""

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
    """One connection; call ``run`` once. Its outcome is added to ``log`` unless the client sent no request."""

    def __init__(
        self, sandbox_id: str, allowed: AllowList, limits: ProxyLimits, routes: Routes, log: EgressLog
    ) -> None:
        self._sandbox_id = sandbox_id
        self._allowed = allowed
        self._limits = limits
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
        """Serve the connection. Raises nothing but a cancellation, which aborts both ends."""
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
            async with _closing(stream, self._limits.idle_s) as inside:
                await self._serve(inside)
        except* TimeoutError:
            self._reason = self._reason or f"nothing moved for {self._limits.idle_s:g} s"
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
            await self._handle_request(inside)
        except RequestRefused as refusal:
            self._verdict, self._reason = refusal.verdict, str(refusal)
            if not self._tunnelled:
                await _send_refusal(inside, refusal)

    async def _handle_request(self, inside: _Stream) -> None:
        """Read the request, check it and serve it. Raises RequestRefused."""
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        request = await _request(inside, parser, self._limits.head_s)
        if request is None:
            return
        parsed = parse_proxy_request(request)
        self._host, self._port = str(parsed.host), parsed.port
        where = show(parsed.host, parsed.port)
        pattern = self._allowed.find(parsed.host, parsed.port)
        if pattern is None:
            raise RequestRefused(HTTPStatus.FORBIDDEN, f"{where} is not among the hosts that this sandbox may reach")
        if pattern.vouched and (parsed.forward is None) is not (parsed.port == HTTPS_PORT):
            raise RequestRefused(
                HTTPStatus.FORBIDDEN, f"{where}: only plain HTTP goes to port 80, and only TLS to port 443"
            )
        idle_s = self._limits.idle_s
        upstream = self._routes.upstreams.find(parsed.host, parsed.port, is_tunnel=parsed.forward is None)
        outside = await (
            self._connect(parsed.host, parsed.port) if upstream is None else self._connect_by_proxy(upstream, parsed)
        )
        async with _closing(outside, idle_s), asyncio.timeout(idle_s) as self._idle:
            if parsed.forward is not None:
                forwarded = upstream.carry(parsed.forward, parsed.host, parsed.port) if upstream else parsed.forward
                await self._forward(forwarded, parser, inside, outside)
            else:
                await self._tunnel(pattern, parsed.host, parser.trailing_data[0], inside, outside)

    async def _connect(self, host: Host, port: int) -> _Stream:
        """Connect to one of the checked addresses of the host. Raises RequestRefused."""
        try:
            async with asyncio.timeout(self._limits.connect_s):
                permitted = await self._routes.resolve(host, port)
                self._verdict = EgressDecision.ALLOWED  # set first: data may arrive even if the connection is then cut
                return await _dial(permitted, port, self._limits.address_s)
        except TimeoutError:
            raise _unreachable(HTTPStatus.GATEWAY_TIMEOUT, host, port, "no answer") from None
        except socket.gaierror:
            raise _unreachable(HTTPStatus.BAD_GATEWAY, host, port, "its name is not known") from None
        except OSError as error:
            raise _unreachable(HTTPStatus.BAD_GATEWAY, host, port, os.strerror(error.errno or 0)) from None

    async def _connect_by_proxy(self, upstream: UpstreamProxy, parsed: ProxyRequest) -> _Stream:
        """Connect to the operator's proxy, which resolves names. Raises RequestRefused."""
        host, port = parsed.host, parsed.port
        try:
            async with asyncio.timeout(self._limits.connect_s):
                if not isinstance(host, str):
                    await self._routes.resolve(host, port)  # the proxy resolves names, but an address is checked here
                self._verdict = EgressDecision.ALLOWED
                connecting = asyncio.open_connection(upstream.host, upstream.port, limit=CHUNK, ssl=upstream.tls)
                async with contextlib.AsyncExitStack() as opened:
                    stream = _Stream(*await connecting)
                    opened.callback(stream.writer.transport.abort)
                    if parsed.forward is None:
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
            first = await _client_hello(inside, host, first, self._limits.head_s)
        await self._send_on(first, outside)
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(inside, outside, self._count_out))
            both.create_task(_copy(outside, inside, self._count_in))

    async def _forward(self, request: h11.Request, parser: h11.Connection, inside: _Stream, outside: _Stream) -> None:
        """Forward one request, and copy the response until the host closes. Further data of the client is discarded."""
        async with asyncio.TaskGroup() as both:
            sending = both.create_task(self._send(request, parser, inside, outside))
            await _copy(outside, inside, self._count_in)
            sending.cancel()

    async def _send(self, request: h11.Request, parser: h11.Connection, inside: _Stream, outside: _Stream) -> None:
        sender = h11.Connection(h11.CLIENT)
        event: h11.Event = request
        while not isinstance(event, h11.EndOfMessage):
            await self._send_on(sender.send(event), outside)
            event = await _event(inside, parser)
        # Serialized again, because the client's EndOfMessage may have trailers.
        await self._send_on(sender.send(h11.EndOfMessage()), outside)

    async def _send_on(self, data: bytes | None, outside: _Stream) -> None:
        if data:
            await outside.send(data)
            self._count_out(len(data))

    def _count_out(self, count: int) -> None:
        self._bytes_out += count
        self._reset_idle()

    def _count_in(self, count: int) -> None:
        self._bytes_in += count
        self._reset_idle()

    def _reset_idle(self) -> None:
        if not self._idle.expired():
            self._idle.reschedule(asyncio.get_running_loop().time() + self._limits.idle_s)


@contextlib.asynccontextmanager
async def _closing(stream: _Stream, wait_s: float) -> AsyncIterator[_Stream]:
    """Flush and close the stream at the end; abort it after an error."""
    try:
        yield stream
        stream.writer.close()
        async with asyncio.timeout(wait_s):
            await stream.writer.wait_closed()
    finally:
        stream.writer.transport.abort()


async def _dial(addresses: Sequence[Address], port: int, timeout_s: float) -> _Stream:
    """Connect to the first address that answers. Raises OSError if none does."""
    failure = OSError()
    for address in addresses:
        try:
            async with asyncio.timeout(timeout_s):
                return _Stream(*await asyncio.open_connection(str(address), port, limit=CHUNK))
        except OSError as error:
            failure = error
    raise failure


def _unreachable(status: HTTPStatus, host: Host, port: int, why: str) -> RequestRefused:
    return RequestRefused(status, f"{show(host, port)} cannot be reached: {why}", EgressDecision.FAILED)


async def _request(inside: _Stream, parser: h11.Connection, timeout_s: float) -> h11.Request | None:
    """Read a request; None if the client closed without sending one. Raises RequestRefused."""
    try:
        async with asyncio.timeout(timeout_s):
            # Small chunks: the parser limits the size of an incomplete request.
            event = await _event(inside, parser, HEAD_CHUNK)
    except TimeoutError:
        raise RequestRefused(HTTPStatus.REQUEST_TIMEOUT, f"no whole request came within {timeout_s:g} s") from None
    except h11.RemoteProtocolError as error:
        raise RequestRefused(
            HTTPStatus(error.error_status_hint), "this is not an HTTP request that a proxy takes"
        ) from None
    return event if isinstance(event, h11.Request) else None


async def _event(inside: _Stream, parser: h11.Connection, chunk: int = CHUNK) -> h11.Event:
    """Read the next event of the parser. Raises h11.RemoteProtocolError."""
    while (event := parser.next_event()) is h11.NEED_DATA:
        parser.receive_data(await inside.reader.read(chunk))
    assert isinstance(event, h11.Event)  # never PAUSED: only one message is read
    return event


async def _client_hello(inside: _Stream, host: Host, first: bytes, timeout_s: float) -> bytes:
    """Return the bytes of a TLS client hello whose SNI is ``host``. Raises RequestRefused for anything else.

    Many hosts share an address, and the far end selects one of them by the SNI.
    """
    reader, hello, data = SniParser(), b"", first
    try:
        async with asyncio.timeout(timeout_s):
            while (name := reader.feed(data)) is HelloState.UNFINISHED and len(hello) < HELLO_BYTES_MAX:
                hello += data
                data = await inside.reader.read(CHUNK)
                if not data:
                    break
    except TimeoutError:
        name = HelloState.UNFINISHED
    if not isinstance(name, str) or not _is_name_of(name, host):
        actual = repr(name) if isinstance(name, str) else name.value
        raise RequestRefused(
            HTTPStatus.FORBIDDEN, f"the tunnel to {host} is for TLS that asks for that name, not for {actual}"
        )
    return hello + data


def _is_name_of(name: str, host: Host) -> bool:
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
    else:  # TLS cannot close one direction only
        sink.writer.close()


async def _send_refusal(inside: _Stream, refusal: RequestRefused) -> None:
    """Send the refusal, then read for a moment: closing while the client still sends would discard the refusal."""
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

"""An HTTP transport that connects only to addresses that were checked after name resolution, and bounds what an answer
sends before its body.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import httpcore
import httpx

from farm.policy.endpoint_access import EndpointRefusal
from sandboxes.egress.addresses import Address

KEPT_S = 10.0
"""Seconds for which the addresses of a name are cached, because many episodes call one endpoint."""

Refusal = Callable[[Address], EndpointRefusal | None]
"""Return why no request may go to an address, or None if it may."""

_NO_ADDRESS = EndpointRefusal("it has no address; name another host")


MAX_HEAD_BYTES = 64 * 1024
"""Limit for the head of an answer together with all interim answers (status 1xx) before it, which have no end."""
_HEAD_PART_BYTES = 4096
"""What is read of heads at a time: the parser takes them without a pause, some 20 bytes an interim answer."""


@dataclass(slots=True)
class _Head:
    left: int = MAX_HEAD_BYTES


_head: ContextVar[_Head | None] = ContextVar("farm_answer_head", default=None)
"""The bytes that the head of the awaited answer may still have; None while a body is read."""


def bounded_transport(*, keep_alive: int, verify: bool) -> httpx.AsyncHTTPTransport:
    """Return a transport of any number of connections whose heads ``CheckedTransport`` bounds.

    ``keep_alive``: idle connections that are kept.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=keep_alive)
    transport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False, verify=verify)
    # httpx passes no network backend on to its pool.
    transport._pool._network_backend = _BoundedBackend()
    return transport


class CheckedTransport(httpx.AsyncBaseTransport):
    """Resolve the name of each request, and connect to an address that ``refusal`` admits, never to the name.

    Raises PolicyError if no address is admitted. A name that changes its address between check and connection has no
    effect. TLS still sends and verifies the name.
    """

    def __init__(self, refusal: Refusal, inner: httpx.AsyncBaseTransport) -> None:
        self._refusal = refusal
        self._inner = inner
        self._resolving = asyncio.Lock()
        self._name, self._addresses, self._until = "", list[Address](), 0.0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.host
        addresses = await self._resolve(name)
        refusals = [self._refusal(address) for address in addresses]
        usable = [address for address, refusal in zip(addresses, refusals, strict=True) if refusal is None]
        if not usable:
            found = [refusal for refusal in refusals if refusal is not None] or [_NO_ADDRESS]
            raise min(found, key=lambda refusal: not refusal.only_here).error(name)
        request.extensions = {**request.extensions, "sni_hostname": name}
        *others, last = usable
        for address in others:
            request.url = request.url.copy_with(host=str(address))
            try:
                return await self._send(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        request.url = request.url.copy_with(host=str(last))
        return await self._send(request)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return the answer when its head is there."""
        before = _head.set(_Head())
        try:
            return await self._inner.handle_async_request(request)
        finally:
            _head.reset(before)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _resolve(self, name: str) -> list[Address]:
        """Return the addresses of a name, resolved once for all who ask. Raises httpx.ConnectError."""
        async with self._resolving:
            now = asyncio.get_running_loop().time
            if name != self._name or now() >= self._until:
                self._addresses = await _resolve(name)
                self._name, self._until = name, now() + KEPT_S
            return self._addresses


async def _resolve(name: str) -> list[Address]:
    """Return the addresses of a name in the resolver's order, each once. Raises httpx.ConnectError."""
    try:
        return [ip_address(name)]
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        raise httpx.ConnectError(f"the name {name} is not known") from None
    return list(dict.fromkeys(ip_address(str(place[0]).partition("%")[0]) for *_, place in found))


class _BoundedBackend(httpcore.AnyIOBackend):
    """Connect by TCP to a stream whose heads are bounded."""

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return _BoundedStream(await super().connect_tcp(*args, **options))


class _BoundedStream(httpcore.AsyncNetworkStream):
    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        head = _head.get()
        if head is None:
            return await self._inner.read(max_bytes, timeout)
        part = await self._inner.read(min(max_bytes, _HEAD_PART_BYTES), timeout)
        head.left -= len(part)
        if head.left < 0:
            raise httpcore.RemoteProtocolError(f"the head of the answer is longer than {MAX_HEAD_BYTES} bytes")
        await asyncio.sleep(0)  # many parts that came together are parsed with pauses
        return part

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return _BoundedStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

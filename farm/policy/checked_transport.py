"""An HTTP transport that connects only to addresses that were checked after name resolution."""

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address

import httpx

from farm.policy.endpoint_access import EndpointRefusal
from sandboxes.egress.addresses import Address

KEPT_S = 10.0
"""Seconds for which the addresses of a name are cached, because many episodes call one endpoint."""

Refusal = Callable[[Address], EndpointRefusal | None]
"""Return why no request may go to an address, or None if it may."""

_NO_ADDRESS = EndpointRefusal("it has no address; name another host")


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
                return await self._inner.handle_async_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        request.url = request.url.copy_with(host=str(last))
        return await self._inner.handle_async_request(request)

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

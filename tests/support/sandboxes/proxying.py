"""A proxy on loopback, and a client that says to it exactly what a test wants."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from sandboxes.egress import AllowList, EgressLog, EgressProxy, EgressRecord, Grants, ProxyLimits, UpstreamProxies
from tests.support.sandboxes.conformance import WAIT_S
from tests.support.sandboxes.serving import eventually

HOST = "127.0.0.1"


@dataclass(slots=True)
class Client:
    """Connects as a program in a sandbox would."""

    port: int
    proxy: EgressProxy
    log: EgressLog

    async def ask(self, *parts: str | bytes) -> bytes:
        """All that comes back for bytes that are sent."""
        reader, writer = await self.open(*parts)
        try:
            return await asyncio.wait_for(reader.read(), WAIT_S)
        finally:
            writer.close()

    async def open(self, *parts: str | bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port)
        writer.write(b"".join(part.encode("latin-1") if isinstance(part, str) else part for part in parts))
        return reader, writer

    async def tunnel(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.open(f"CONNECT {HOST}:{port} HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        return reader, writer

    async def records(self, count: int) -> tuple[EgressRecord, ...]:
        """A record is there when its connection has ended, some time after its last byte."""
        await eventually(lambda: len(self.log.records) >= count)
        return self.log.records


@contextlib.asynccontextmanager
async def proxying(
    *patterns: str,
    bounds: ProxyLimits | None = None,
    granted: Sequence[str] | None = None,
    upstreams: UpstreamProxies | None = None,
) -> AsyncIterator[Client]:
    """``granted`` None: the operator grants what the patterns name at loopback."""
    if granted is None:
        granted = [pattern for pattern in patterns if pattern.startswith(f"{HOST}:")]
    listener = socket.create_server((HOST, 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    log = EgressLog()
    proxy = EgressProxy(
        "box",
        AllowList.parse(patterns),
        listener,
        log,
        grants=Grants.parse(granted),
        limits=bounds or ProxyLimits(),
        upstreams=upstreams or UpstreamProxies(),
    )
    try:
        yield Client(port, proxy, log)
    finally:
        await proxy.close()


def get(target: str, *headers: str) -> str:
    return "\r\n".join((f"GET {target} HTTP/1.1", *(headers or ("Host: x",)), "", ""))


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])

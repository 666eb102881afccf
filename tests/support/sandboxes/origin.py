"""A host that a sandbox may want to reach: real HTTP on loopback, which remembers exactly what reached it."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import h11

BODY = b"from the origin\n"


@dataclass(slots=True)
class Visit:
    """One connection. ``beyond`` is what came after the first request."""

    request: h11.Request | None = None
    body: bytes = b""
    trailers: list[tuple[bytes, bytes]] = field(default_factory=list)
    beyond: bytes = b""
    ended: bool = False

    def headers(self) -> dict[bytes, bytes]:
        assert self.request is not None
        return dict(self.request.headers)


@dataclass(slots=True)
class Origin:
    port: int
    visits: list[Visit] = field(default_factory=list)


@contextlib.asynccontextmanager
async def origin(host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Origin]:
    """Answers the first request of each connection with BODY, and says that nothing more will come."""
    found = Origin(port)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = Visit()
        found.visits.append(visit)
        parser = h11.Connection(h11.SERVER)
        with contextlib.suppress(OSError, h11.RemoteProtocolError):
            while not isinstance(event := parser.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                if event is h11.NEED_DATA:
                    parser.receive_data(await reader.read(65536))
                elif isinstance(event, h11.Request):
                    visit.request = event
                elif isinstance(event, h11.Data):
                    visit.body += event.data
            if isinstance(event, h11.EndOfMessage):
                visit.trailers = list(event.headers)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
                if tls is None:
                    writer.write_eof()
                else:
                    writer.close()
                visit.beyond = parser.trailing_data[0] + await reader.read()
        visit.ended = True
        writer.close()

    server = await asyncio.start_server(serve, host, port, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await server.wait_closed()


@contextlib.asynccontextmanager
async def echo(host: str = "127.0.0.1") -> AsyncIterator[int]:
    """The port of a server that sends everything back, and ends when the other side has."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()

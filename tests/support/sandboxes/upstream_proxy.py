"""An operator's HTTP proxy on loopback that resolves names of its own and may want a login."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

LOGIN = "farm:p@ss:word"
URL_LOGIN = "farm:p%40ss%3Aword"


@dataclass(slots=True)
class UpstreamProxy:
    """``asked``: methods and targets, in the order of arrival."""

    port: int = 0
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{URL_LOGIN}@127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def upstream_proxy(names: Mapping[str, int], tls: ssl.SSLContext | None = None) -> AsyncIterator[UpstreamProxy]:
    """``names``: for each host that it knows, the port on loopback where that host listens."""
    found = UpstreamProxy()
    authorization = f"Basic {base64.b64encode(LOGIN.encode()).decode()}".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, h11.RemoteProtocolError):
            await exchange(reader, writer)
        writer.close()

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        parser = h11.Connection(h11.SERVER)
        parser.receive_data(head)
        request = parser.next_event()
        assert isinstance(request, h11.Request)
        method, target = request.method.decode(), request.target.decode()
        found.asked.append((method, target))
        url = urlsplit(target if "://" in target else f"//{target}")
        if dict(request.headers).get(b"proxy-authorization") != authorization:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        elif url.hostname is None or url.hostname not in names:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        else:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", names[url.hostname])
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 OK\r\nVia: upstream\r\n\r\n")
            else:
                headers = [header for header in request.headers if header[0] != b"proxy-authorization"]
                onward = h11.Request(method=method, target=url.path or "/", headers=headers)
                far_writer.write(h11.Connection(h11.CLIENT).send(onward) or b"")
            await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))
            far_writer.close()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
        else:
            sink.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        await server.wait_closed()

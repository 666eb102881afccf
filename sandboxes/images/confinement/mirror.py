"""Serve package indexes at a loopback address of a build step: the farm fetches with the host's certificates and
logins.
"""

import asyncio
import secrets
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import h11
import httpx

from sandboxes.egress import AllowList, EgressLog, EgressProxy, UpstreamProxies
from sandboxes.egress.upstream import hosts_without_proxy, proxy_urls, unusable
from sandboxes.images.confinement.indexes import IndexUpstream, PackageIndexes, Router

PAGE_BYTES_MAX = 64 << 20
_rewriting = threading.Lock()
"""Held while a page is rewritten: one at a time, because each may take ten times its size of memory."""
HEAD_BYTES_MAX = 16 << 10
HEAD_S, IDLE_S = 30.0, 120.0
CHUNK = 64 << 10

_REQUEST_HEADERS = ("accept", "range", "if-none-match", "if-modified-since", "user-agent")
_RESPONSE_HEADERS = (
    "content-type",
    "content-range",
    "accept-ranges",
    "etag",
    "last-modified",
    "location",
    "retry-after",
)


@dataclass(frozen=True, slots=True)
class MirrorAccess:
    """How the farm fetches from package indexes: trusted certificates, and the host's proxies by URL scheme."""

    ca_bundle: Path | None
    proxies: Mapping[str, str]

    def upstreams(self) -> UpstreamProxies:
        """Return the proxies for direct requests of build steps. Raises RuntimeUnavailable."""
        return UpstreamProxies.parse(self.proxies, self.ca_bundle)

    def client(self, *, verify: bool) -> httpx.AsyncClient:
        context: ssl.SSLContext | bool = False
        if verify:
            context = ssl.create_default_context(cafile=str(self.ca_bundle) if self.ca_bundle else None)
        mounts: dict[str, httpx.AsyncBaseTransport | None] = {
            f"{scheme}://": _proxied(f"{scheme}_proxy", proxy, context)
            for scheme, proxy in proxy_urls(self.proxies).items()
        }
        for host in hosts_without_proxy(self.proxies) if mounts else ():
            mounts |= {f"all://{host}": None, f"all://*.{host}": None}
        return httpx.AsyncClient(
            verify=context,
            mounts=mounts,
            trust_env=False,
            follow_redirects=True,
            timeout=httpx.Timeout(IDLE_S, connect=HEAD_S),
        )


def _proxied(variable: str, proxy: str, context: ssl.SSLContext | bool) -> httpx.AsyncHTTPTransport:
    """Return a transport through a proxy of the host. Raises RuntimeUnavailable if the proxy's URL is invalid."""
    try:
        return httpx.AsyncHTTPTransport(proxy=proxy, verify=context)
    except (ValueError, ImportError, httpx.InvalidURL):
        raise unusable(variable) from None


class IndexMirror:
    """Answers the requests of one build's steps. Use ``open`` to create one."""

    def __init__(self, indexes: PackageIndexes, verified: httpx.AsyncClient, unverified: httpx.AsyncClient) -> None:
        self._indexes = indexes
        self._router = Router(indexes, secrets.token_bytes(32))
        self._verified = verified
        self._unverified = unverified

    @classmethod
    @asynccontextmanager
    async def open(cls, indexes: PackageIndexes, access: MirrorAccess) -> AsyncIterator[Self]:
        async with access.client(verify=True) as verified, access.client(verify=False) as unverified:
            yield cls(indexes, verified, unverified)

    async def answer(self, client: socket.socket) -> None:
        """Read one request and answer it. A broken client connection is ignored."""
        reader, writer = await asyncio.open_connection(sock=client, limit=CHUNK)
        try:
            await self._answer(reader, writer)
            writer.write_eof()
            async with asyncio.timeout(IDLE_S):
                await writer.drain()
                await reader.read(1)  # until the client closes: closing first could truncate the answer
        except (OSError, TimeoutError, h11.ProtocolError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        async with asyncio.timeout(HEAD_S):
            while (event := parser.next_event()) is h11.NEED_DATA:
                parser.receive_data(await reader.read(4096))
        if not isinstance(event, h11.Request):
            return
        answer = _Answer(parser, writer)
        upstream = self._router.find(event.target.decode("latin-1"))
        if event.method not in (b"GET", b"HEAD") or upstream is None:
            await answer.fail(HTTPStatus.FORBIDDEN, "the farm's package mirror serves packages and nothing else")
            return
        try:
            await self._fetch(event, upstream, answer)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            await answer.fail(HTTPStatus.BAD_GATEWAY, f"the package index cannot be read: {type(error).__name__}")

    async def _fetch(self, request: h11.Request, upstream: IndexUpstream, answer: "_Answer") -> None:
        headers = {
            name.decode(): value.decode("latin-1")
            for name, value in request.headers
            if name.decode() in _REQUEST_HEADERS
        }
        headers["accept-encoding"] = "identity"
        if upstream.page or upstream.npm:
            for name in ("range", "if-none-match", "if-modified-since"):
                headers.pop(name, None)
        async with self._client(upstream).stream(
            "GET" if upstream.page else request.method.decode(),
            upstream.url,
            headers=headers | self._authorization(upstream),
            auth=self._login(upstream) or httpx.USE_CLIENT_DEFAULT,
        ) as response:
            forwarded = [(name, response.headers[name]) for name in _RESPONSE_HEADERS if name in response.headers]
            kind = response.headers.get("content-type", "").partition(";")[0].strip()
            if response.status_code == HTTPStatus.OK and (upstream.page or (upstream.npm and kind.endswith("json"))):
                content = await _read_all(response)
                content = await asyncio.to_thread(self._rewritten, upstream, str(response.url), kind, content)
                media_type = response.headers.get("content-type", "application/octet-stream")
                await answer.begin(
                    response.status_code, [("content-type", media_type), ("content-length", str(len(content)))]
                )
                await answer.send(content)
            else:
                if "content-length" in response.headers and "content-encoding" not in response.headers:
                    forwarded.append(("content-length", response.headers["content-length"]))
                await answer.begin(response.status_code, forwarded)
                async for chunk in response.aiter_bytes(CHUNK):
                    await answer.send(chunk)
            await answer.end()

    def _rewritten(self, upstream: IndexUpstream, url: str, kind: str, content: bytes) -> bytes:
        if not content:
            return content
        with _rewriting:
            if upstream.page:
                return self._router.rewrite_page(url, kind, content)
            return self._router.rewrite_npm(content)

    def _client(self, upstream: IndexUpstream) -> httpx.AsyncClient:
        trusted = self._indexes.pip.trusted_hosts
        url = urlsplit(upstream.url)
        is_trusted = not upstream.npm and bool({url.hostname, url.netloc.rpartition("@")[2]} & trusted)
        return self._unverified if is_trusted else self._verified

    def _authorization(self, upstream: IndexUpstream) -> dict[str, str]:
        header = self._indexes.npm.authorization if upstream.npm else ""
        return {"authorization": header} if header else {}

    def _login(self, upstream: IndexUpstream) -> httpx.BasicAuth | None:
        """Return the credentials in the URL of the index that ``upstream`` belongs to."""
        target = urlsplit(upstream.url)
        for url in map(urlsplit, (*self._indexes.pip.urls, *self._indexes.pip.find_links)):
            same = (url.scheme, url.hostname, url.port) == (target.scheme, target.hostname, target.port)
            if url.username and same and not upstream.npm:
                auth = httpx.URL(url.geturl())
                return httpx.BasicAuth(auth.username, auth.password)
        return None


class MirrorListener(EgressProxy):
    """Accepts connections to the mirror from one step, with the limits of an egress proxy."""

    def __init__(self, build_id: str, listener: socket.socket, mirror: IndexMirror) -> None:
        super().__init__(build_id, AllowList(()), listener, EgressLog())
        self._mirror = mirror

    async def _serve(self, client: socket.socket) -> None:
        await self._mirror.answer(client)


class _Answer:
    def __init__(self, parser: h11.Connection, writer: asyncio.StreamWriter) -> None:
        self._parser = parser
        self._writer = writer
        self._has_begun = False

    async def begin(self, status: int, headers: list[tuple[str, str]]) -> None:
        self._has_begun = True
        await self._write(h11.Response(status_code=status, headers=[*headers, ("connection", "close")]))

    async def send(self, data: bytes) -> None:
        if data:
            await self._write(h11.Data(data=data))

    async def end(self) -> None:
        await self._write(h11.EndOfMessage())

    async def fail(self, status: HTTPStatus, message: str) -> None:
        """Answer with an error, or abort an answer that has started."""
        if self._has_begun:
            self._writer.transport.abort()
            return
        body = f"{message}\n".encode()
        await self.begin(status.value, [("content-type", "text/plain"), ("content-length", str(len(body)))])
        await self.send(body)
        await self.end()

    async def _write(self, event: h11.Event) -> None:
        self._writer.write(self._parser.send(event) or b"")
        async with asyncio.timeout(IDLE_S):
            await self._writer.drain()


async def _read_all(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_bytes(CHUNK):
        content += chunk
        if len(content) > PAGE_BYTES_MAX:
            raise ValueError("the page is too large")
    return bytes(content)

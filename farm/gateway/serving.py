"""The gateway on a socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_GRACE_S = 5
_IDLE_S = 30
_MOST_REQUESTS = 4096


class AddressTaken(Exception):
    """The gateway's address cannot be listened on; one line that names the remedy."""


@asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket, *, idle_s: int = _IDLE_S) -> AsyncIterator[str]:
    """Serve what comes to ``listener`` for the length of the block, and close it; yields the URL.

    ``idle_s``: so long a connection may be open without a request that is whole in its head.
    """
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        app,
        http=_Timely,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=idle_s,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_MOST_REQUESTS,
        h11_max_incomplete_event_size=64 * 1024,
    )
    server = _Quiet(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.up.wait()
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{port}"
    finally:
        server.should_exit = True
        await asyncio.shield(asyncio.wait([task]))
        listener.close()


class _Timely(H11Protocol):
    """Ends a connection on which no request is being answered for ``timeout_keep_alive``, whatever trickles in.

    uvicorn's own limit holds only between an answer and the next byte: half a head, or the rest of a body that was
    refused, would hold a connection for ever.
    """

    _ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in H11Protocol
        super().connection_made(transport)
        self._limit()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._limit()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unlimit()
        super().connection_lost(exc)

    def _limit(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unlimit()
        elif self._ending is None:
            self._ending = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _unlimit(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None


class _Quiet(uvicorn.Server):
    """Leaves the signals to the program that it is a part of."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


def listen(host: str, port: int) -> socket.socket:
    """The gateway's address taken, before anything else is started; ``port`` 0 takes a free one. Raises AddressTaken.

    Whoever calls meanwhile waits until it is served.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off the batching of small writes, 40 ms an answer, only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise AddressTaken(
            f"{host}:{port}: {error.strerror or error}; choose another with --port, or end what listens there"
        ) from None
    return listener

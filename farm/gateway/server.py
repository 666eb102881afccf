"""The HTTP server of the gateway."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from farm.gateway.connections import READ_BYTES, GuardedConnection, Places, Shares

_GRACE_S = 5
_IDLE_S = 30
_ACCEPTED_AT_ONCE = 64
"""Connections accepted between two reads: far fewer than strangers may have, so each is read before it can be ended."""

_WAITING = 1024


class AddressTaken(Exception):
    """Raised if the gateway cannot listen on its address. The message is one line that names the remedy."""


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, *, idle_s: int = _IDLE_S, shares: Shares | None = None
) -> AsyncIterator[str]:
    """Serve ``listener`` for the length of the block, and close it. Yield the URL.

    ``idle_s``: the time that an authenticated connection may be open without a complete request head. ``shares``: the
    numbers of connections (default: what fits the limit of open files).
    """
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        app,
        http=GuardedConnection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_keep_alive=idle_s,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=READ_BYTES,
    )
    server = _Quiet(config)
    server.server_state = Places(shares or Shares.of_machine())
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.up.wait()
        listener.listen(_WAITING)  # uvicorn has set the queue to what is accepted at once
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{port}"
    finally:
        server.should_exit = True
        await asyncio.shield(asyncio.wait([task]))
        listener.close()


class _Quiet(uvicorn.Server):
    """A server that leaves signals to the program that contains it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Bind the gateway's address before anything else starts; ``port`` 0 takes a free one. Raises AddressTaken.

    Callers that connect early wait until they are served.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it an answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        raise AddressTaken(
            f"{host}:{port}: {error.strerror or error}; choose another with FARM_PORT (or `farm up --port`), "
            "or end what listens there"
        ) from None
    return listener

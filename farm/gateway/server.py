"""The gateway on a socket."""

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
"""Accepted between two readings: far fewer than strangers have places, so each is read before it can be ended."""

_WAITING = 1024


class AddressTaken(Exception):
    """The gateway's address cannot be listened on; one line that names the remedy."""


@asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, *, idle_s: int = _IDLE_S, shares: Shares | None = None
) -> AsyncIterator[str]:
    """Serve what comes to ``listener`` for the length of the block, and close it; yields the URL.

    ``idle_s``: so long a known connection may be open without a request that is whole in its head. ``shares``: how
    many connections strangers and roles may have (default: what fits the limit of open files).
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
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        raise AddressTaken(
            f"{host}:{port}: {error.strerror or error}; choose another with FARM_PORT (or `farm up --port`), "
            "or end what listens there"
        ) from None
    return listener

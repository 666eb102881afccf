"""Listens on an address and serves an ASGI application inside of another program."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn


class AddressTaken(Exception):
    """Raised if a server cannot listen on its address. The message is one line that names the remedy."""


class _EmbeddedServer(uvicorn.Server):
    """A server that leaves signals to the program that contains it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


def listen(host: str, port: int, *, waiting: int, remedy: str) -> socket.socket:
    """Bind an address; ``port`` 0 takes a free one. Callers that connect early wait until they are served.

    ``waiting``: the number of connections that the kernel holds until they are accepted. ``remedy``: how a user chooses
    another port. Raises AddressTaken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it an answer takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(waiting)
    except OSError as error:
        listener.close()
        raise AddressTaken(
            f"{host}:{port}: {error.strerror or error}; choose another with {remedy}, or end what listens there"
        ) from None
    return listener


@asynccontextmanager
async def serve_listener(
    config: uvicorn.Config, listener: socket.socket, *, state: uvicorn.server.ServerState | None = None
) -> AsyncIterator[str]:
    """Serve ``listener`` for the length of the block, and close it. Yield the URL.

    ``state``: the server's set of connections, if it is not uvicorn's own.
    """
    host, port = listener.getsockname()[:2]
    server = _EmbeddedServer(config)
    if state is not None:
        server.server_state = state
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await server.up.wait()
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        server.should_exit = True
        await asyncio.shield(asyncio.wait([task]))
        listener.close()

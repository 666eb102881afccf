"""A connection to a tool server: it sends frames and matches answers to requests by id."""

import asyncio
import os
import socket
import struct
from pathlib import Path

from sandboxes.errors import ProtocolError, SandboxGone
from sandboxes.toolserver import protocol
from sandboxes.toolserver.protocol import ServerReply

_RETRY_S = 0.002
_PEER = struct.Struct("3i")


class ServerConnection(asyncio.Protocol):
    """Sends frames, and resolves the future of each answer's id. When it is lost, all futures fail."""

    def __init__(self) -> None:
        self._splitter = protocol.FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[ServerReply]] = {}
        self._lost: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            answers = self._splitter.feed(data)
        except ProtocolError as error:
            self.lose(error)
            return
        for answer in answers:
            # The id is unknown if the caller was cancelled.
            future = self._waiting.pop(answer.id, None)
            if future is not None and not future.done():
                future.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(SandboxGone(f"the tool server closed the connection{f': {exc}' if exc else ''}"))

    def lose(self, reason: Exception) -> None:
        """Close the connection and fail all waiting calls with ``reason``, or with the first reason."""
        if self._lost is None:
            self._lost = reason
        if self._transport is not None:
            self._transport.abort()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._lost)
        self._waiting.clear()

    def send(self, data: bytes) -> None:
        if self._lost is not None:
            raise self._lost
        assert self._transport is not None
        self._transport.write(data)

    async def ask(self, request_id: int, data: bytes) -> ServerReply:
        """Send a request and wait for its answer."""
        future: asyncio.Future[ServerReply] = asyncio.get_running_loop().create_future()
        self.send(data)
        self._waiting[request_id] = future
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)


async def connect(path: Path, expected_pid: int | None) -> ServerConnection:
    """Connect as soon as a process listens. Raises OSError, and ProtocolError if its pid is not ``expected_pid``."""
    loop = asyncio.get_running_loop()
    # Connect through a descriptor of the directory: its path may be too long for a socket's name.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        while True:
            try:
                transport, connection = await loop.create_unix_connection(
                    ServerConnection, f"/proc/self/fd/{directory}/{path.name}"
                )
                break
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(_RETRY_S)
    finally:
        os.close(directory)
    listener = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid = _PEER.unpack(listener)[0]
    if expected_pid is not None and pid != expected_pid:
        transport.abort()
        raise ProtocolError(f"the tool server's socket belongs to process {pid}, not {expected_pid}")
    return connection

"""The host's side of a tool server: one connection, calls by id, nothing believed."""

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from sandboxes import protocol
from sandboxes.errors import AnswerLost, BootError, PathError, ProtocolError, SandboxGone, SpecError
from sandboxes.protocol import Answer, Op, WriteFlag
from sandboxes.sandbox import MIB, Capture, ExecResult, FileEntry

ANSWER_S = 120.0
"""How long the server may take over what has no time-out of its own, or beyond one, before it counts as gone."""

_CONNECT_RETRY_S = 0.002
_PEER = struct.Struct("3i")


class _Connection(asyncio.Protocol):
    """Sends frames and resolves the future of each answer's id; once lost, every future fails."""

    def __init__(self) -> None:
        self._splitter = protocol.FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
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
            # Nobody waits any more for a call that was given up; its answer is of no use.
            future = self._waiting.pop(answer.id, None)
            if future is not None and not future.done():
                future.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(SandboxGone(f"the tool server closed the connection{f': {exc}' if exc else ''}"))

    def lose(self, reason: Exception) -> None:
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

    async def ask(self, request_id: int, data: bytes) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.send(data)
        self._waiting[request_id] = future
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)


class ToolServer:
    """Client of one tool server; the calls mean what ``Sandbox`` says of them.

    Every call raises SandboxGone when the server does not answer, ProtocolError when it answers nonsense, and may be
    cancelled: a command that is cancelled is killed inside.
    """

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._next_id = secrets.randbits(62)
        self._sessions: dict[str, asyncio.Lock] = {}
        self._chosen: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    async def connect(cls, path: Path, *, expected_pid: int | None, timeout_s: float) -> Self:
        """Wait for the server to listen at ``path`` and to answer.

        Raises ProtocolError when another process than ``expected_pid`` listens there, and BootError when there is no
        answer within ``timeout_s``. None believes whoever listens.
        """
        try:
            async with asyncio.timeout(timeout_s):
                server = cls(await _connect(path, expected_pid))
                try:
                    await server.ping()
                except BaseException:
                    await server.close()
                    raise
                return server
        except TimeoutError:
            raise BootError(f"the tool server did not answer within {timeout_s:g} s") from None
        except (OSError, SandboxGone) as error:
            raise BootError(f"the tool server does not answer: {error}") from None

    async def close(self) -> None:
        """Let go of the connection; what runs inside goes on."""
        self._connection.lose(SandboxGone("the connection is closed"))

    async def ping(self) -> None:
        version = protocol.version((await self._call(Op.PING, b"")).body)
        if version != protocol.VERSION:
            raise ProtocolError(f"the tool server speaks protocol {version}, this host {protocol.VERSION}")

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float,
        output_limit: int = MIB,
        merge_stderr: bool = False,
        call_id: str | None = None,
    ) -> ExecResult:
        if not argv:
            raise SpecError("there is no program to run: argv is empty")
        try:
            body = protocol.exec_request(
                argv,
                cwd=cwd,
                env=env or {},
                stdin=stdin,
                timeout_s=timeout_s,
                output_limit=output_limit,
                merge_stderr=merge_stderr,
            )
            return await self._run(Op.EXEC, body, timeout_s, output_limit, call_id)
        except protocol.Unsendable as error:
            return _not_started(error)

    async def shell(
        self,
        command: str,
        *,
        session: str = "main",
        timeout_s: float,
        output_limit: int = MIB,
        call_id: str | None = None,
    ) -> ExecResult:
        name = _session(session)
        try:
            body = protocol.caps(timeout_s, output_limit) + name + protocol.text(command)
            async with self._sessions.setdefault(session, asyncio.Lock()):
                return await self._run(Op.SHELL, body, timeout_s, output_limit, call_id)
        except protocol.Unsendable as error:
            return _not_started(error)

    async def restart_shell(self, session: str = "main") -> None:
        """A command that runs in it ends as by a kill; the next begins in a fresh shell."""
        await self._done(Op.RESTART, _session(session))

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 64 * MIB) -> bytes:
        chunks: list[bytes] = []
        left = limit
        while left > 0:
            asked = min(left, protocol.READ_CHUNK)
            body = struct.pack("<QQ", offset, asked) + _path(path)
            chunk = protocol.content((await self._path_call(Op.READ, body, path)).body, asked)
            chunks.append(chunk)
            offset += len(chunk)
            left -= len(chunk)
            if len(chunk) < asked:
                break
        return b"".join(chunks)

    async def write_file(
        self, path: str, content: bytes, *, executable: bool | None = None, parents: bool = False
    ) -> None:
        if len(content) > protocol.CONTENT_MAX:
            raise PathError(errno.EFBIG, path, f"{len(content)} bytes are more than {protocol.CONTENT_MAX}")
        flags = WriteFlag.PARENTS if parents else 0
        if executable is not None:
            flags |= WriteFlag.EXECUTABLE if executable else WriteFlag.PLAIN
        await self._path_done(Op.WRITE, bytes((flags,)) + _path(path) + protocol.blob(content), path)

    async def write_link(self, path: str, target: str) -> None:
        await self._path_done(Op.LINK, _path(path) + _path(target), path)

    async def remove_path(self, path: str) -> None:
        await self._path_done(Op.REMOVE, _path(path), path)

    async def stat(self, path: str) -> FileEntry:
        return protocol.file_entry((await self._path_call(Op.STAT, _path(path), path)).body, path)

    async def walk(self, root: str, *, prune: Sequence[str] = ()) -> list[FileEntry]:
        answer = await self._path_call(Op.WALK, _path(root) + protocol.texts(prune), root)
        # Up to 2 s for the most that there may be, in which others are to be answered.
        return await asyncio.to_thread(protocol.walk_entries, answer.body)

    async def work_in(self, path: str) -> None:
        """Relative paths, and commands, begin there from now on. Raises PathError where its user may not go there."""
        await self._path_done(Op.WORK_IN, _path(path), path)

    async def kill_all(self) -> None:
        await self._done(Op.KILL_ALL, b"")

    async def _run(self, op: Op, body: bytes, timeout_s: float, output_limit: int, call_id: str | None) -> ExecResult:
        if call_id is None:
            answer = await self._call(op, body, timeout_s + ANSWER_S)
        else:
            answer = await self._call_once(op, body, timeout_s + ANSWER_S, call_id)
        _refuse(answer, op)
        return protocol.exec_result(answer.body, output_limit)

    async def _call_once(self, op: Op, body: bytes, wait_s: float, call_id: str) -> Answer:
        """A call that the server may know already; a repetition waits for the first, whose answer comes but once."""
        async with self._chosen.setdefault(call_id, asyncio.Lock()):
            answer = await self._call(op, body, wait_s, request_id=protocol.chosen_id(call_id))
        if answer.errno == errno.EBADMSG:
            raise SpecError(f"call {call_id!r} was another call; give each an id of its own")
        if answer.errno == errno.ESTALE:
            raise AnswerLost(f"call {call_id!r} has run, and what it answered is no longer known")
        return answer

    async def _done(self, op: Op, body: bytes) -> None:
        answer = await self._call(op, body)
        _refuse(answer, op)
        protocol.empty(answer.body)

    async def _path_call(self, op: Op, body: bytes, path: str) -> Answer:
        try:
            answer = await self._call(op, body)
        except protocol.Unsendable as error:
            raise PathError(errno.E2BIG, path, f"the request {error}") from None
        if answer.errno:
            raise PathError(answer.errno, path, _reason(op, answer.errno))
        return answer

    async def _path_done(self, op: Op, body: bytes, path: str) -> None:
        protocol.empty((await self._path_call(op, body, path)).body)

    async def _call(self, op: Op, body: bytes, wait_s: float = ANSWER_S, *, request_id: int | None = None) -> Answer:
        if request_id is None:
            self._next_id += 1
            request_id = self._next_id
        data = protocol.frame(request_id, op, body)
        try:
            async with asyncio.timeout(wait_s):
                return await self._connection.ask(request_id, data)
        except TimeoutError:
            raise SandboxGone(f"the tool server did not answer within {wait_s:g} s") from None
        except asyncio.CancelledError:
            self._cancel(request_id, op)
            raise

    def _cancel(self, request_id: int, op: Op) -> None:
        if op not in (Op.EXEC, Op.SHELL):
            return
        self._next_id += 1
        with contextlib.suppress(SandboxGone, ProtocolError):  # then nothing is left to be cancelled
            self._connection.send(protocol.frame(self._next_id, Op.CANCEL, struct.pack("<Q", request_id)))


def _refuse(answer: Answer, op: Op) -> None:
    if answer.errno:
        raise SandboxGone(f"the tool server refused {op.name.lower()}: {os.strerror(answer.errno)}")


def _reason(op: Op, number: int) -> str:
    if number == errno.EINVAL and op in (Op.READ, Op.WRITE):
        return "not a regular file"
    if number == errno.E2BIG and op is Op.WALK:
        return "holds too many files to list"
    return os.strerror(number)


def _path(path: str) -> bytes:
    try:
        return protocol.text(path)
    except protocol.Unsendable as error:
        raise PathError(errno.EINVAL, path, str(error)) from None


def _session(name: str) -> bytes:
    try:
        data = protocol.text(name)
    except protocol.Unsendable as error:
        raise SpecError(f"the name of a shell session {error}") from None
    if len(data) > protocol.SESSION_MAX + 5:
        raise SpecError(f"the name of a shell session has more than {protocol.SESSION_MAX} bytes: {name}")
    return data


def _not_started(error: protocol.Unsendable) -> ExecResult:
    return ExecResult(126, Capture(f"toolserver: the command {error}\n".encode()), Capture(b""), False, 0.0)


async def _connect(path: Path, expected_pid: int | None) -> _Connection:
    loop = asyncio.get_running_loop()
    # Through the directory's descriptor: the path itself may be longer than a socket's name can be.
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        while True:
            try:
                transport, connection = await loop.create_unix_connection(
                    _Connection, f"/proc/self/fd/{directory}/{path.name}"
                )
                break
            except (FileNotFoundError, ConnectionRefusedError):
                await asyncio.sleep(_CONNECT_RETRY_S)
    finally:
        os.close(directory)
    listener = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid = _PEER.unpack(listener)[0]
    if expected_pid is not None and pid != expected_pid:
        transport.abort()
        raise ProtocolError(f"process {pid} listens at the tool server's socket, not {expected_pid}")
    return connection

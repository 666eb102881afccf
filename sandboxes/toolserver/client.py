"""The client of a tool server. All answers are untrusted and validated."""

import asyncio
import contextlib
import errno
import os
import secrets
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from sandboxes.errors import AnswerLost, BootError, JobError, PathError, ProtocolError, SandboxGone, SpecError
from sandboxes.interface import MIB, Capture, ExecResult, FileEntry, JobOutput
from sandboxes.toolserver import protocol
from sandboxes.toolserver.connection import ServerConnection, connect
from sandboxes.toolserver.protocol import Op, ServerReply, WriteFlag
from sandboxes.toolserver.replay import READ_OPS, current_call
from sandboxes.toolserver.time_limits import TimeLimits

ANSWER_S = 120.0
"""Time-out of calls without one of their own, and addition to that of others, after which the server is lost."""

_TYPE_RETRY_S = 0.01
_NOT_STARTED = {
    errno.EMFILE: "32 background jobs run already; end one first",
    errno.EBUSY: "a command runs in that shell",
}


class ToolServer:
    """Client of one tool server. The calls are those of ``Sandbox``.

    Every call raises SandboxGone if the server does not answer, and ProtocolError if its answer is invalid. A cancelled
    command is killed inside.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._next_id = secrets.randbits(62)
        self._session_locks: dict[str, asyncio.Lock] = {}
        self._output_locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._call_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._limits = TimeLimits()

    @classmethod
    async def connect(cls, path: Path, *, expected_pid: int | None, timeout_s: float) -> Self:
        """Wait until a server listens at ``path`` and answers.

        Raises ProtocolError if the listening process is not ``expected_pid`` (None: any process may listen), BootError
        if there is no answer within ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                server = cls(await connect(path, expected_pid))
                try:
                    await server.ping()
                except BaseException:
                    await server.close()
                    raise
                return server
        except TimeoutError:
            raise BootError(f"the tool server at {path} did not answer within {timeout_s:g} s") from None
        except (OSError, SandboxGone) as error:
            raise BootError(f"the tool server at {path} does not answer: {error}") from None

    def pause_limits(self) -> None:
        """Let no time pass for the limits of calls, because the sandbox is frozen."""
        self._limits.pause()

    def resume_limits(self) -> None:
        self._limits.resume()

    async def close(self) -> None:
        """Close the connection. Processes inside go on."""
        self._connection.lose(SandboxGone("the connection is closed"))

    async def ping(self) -> None:
        version = protocol.version((await self._call(Op.PING, b"")).body)
        if version != protocol.VERSION:
            raise ProtocolError(f"the tool server has protocol version {version}, not {protocol.VERSION}")

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
        login: bool = False,
        call_id: str | None = None,
    ) -> ExecResult:
        if not argv:
            raise SpecError("argv is empty; give a program to run")
        try:
            body = protocol.exec_request(
                argv,
                cwd=cwd,
                env=env or {},
                stdin=stdin,
                timeout_s=timeout_s,
                output_limit=output_limit,
                merge_stderr=merge_stderr,
                login=login,
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
            body = protocol.encode_limits(timeout_s, output_limit) + name + protocol.text(command)
            async with self._session_locks.setdefault(session, asyncio.Lock()):
                return await self._run(Op.SHELL, body, timeout_s, output_limit, call_id)
        except protocol.Unsendable as error:
            return _not_started(error)

    async def restart_shell(self, session: str = "main") -> None:
        """Kill the session's shell with its command. The next command starts in a new shell."""
        await self._call_without_result(Op.RESTART, _session(session))

    async def start_job(self, command: str, *, session: str = "main", call_id: str | None = None) -> int:
        name = _session(session)
        try:
            body = name + protocol.text(command)
            async with self._session_locks.setdefault(session, asyncio.Lock()):
                answer = await self._call_with_id(Op.START, body, ANSWER_S, call_id)
        except protocol.Unsendable as error:
            raise JobError(f"the command {error}") from None
        if answer.errno:
            raise JobError(_NOT_STARTED.get(answer.errno) or f"the job cannot be started: {os.strerror(answer.errno)}")
        return protocol.number(answer.body)

    async def job_output(
        self, job: int, *, wait_s: float = 0.0, quiet_s: float = 0.0, call_id: str | None = None
    ) -> JobOutput:
        async with self._output_locks.setdefault(job, asyncio.Lock()):
            body = protocol.listen_request(job, wait_s, quiet_s)
            answer = await self._call_with_id(Op.LISTEN, body, wait_s + ANSWER_S, call_id)
        _check_job(answer, job)
        return protocol.job_output(answer.body)

    async def job_input(self, job: int, data: bytes, *, timeout_s: float = 5.0) -> int:
        accepted = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while accepted < len(data):
                    piece = data[accepted : accepted + protocol.INPUT_MAX]
                    answer = await self._call(Op.TYPE, struct.pack("<I", job) + protocol.blob(piece))
                    _check_job(answer, job)
                    accepted_now = protocol.number(answer.body)
                    if accepted_now > len(piece):
                        raise ProtocolError(f"the tool server accepted {accepted_now} bytes of {len(piece)}")
                    accepted += accepted_now
                    if not accepted_now:  # no event says when the program reads again
                        await asyncio.sleep(_TYPE_RETRY_S)
        return accepted

    async def end_job(self, job: int) -> None:
        answer = await self._call(Op.END, struct.pack("<I", job))
        _check_job(answer, job)
        protocol.empty(answer.body)

    async def log_in(self, env: Mapping[str, str]) -> None:
        """Add ``env`` to the environment of shells and jobs that start from now on."""
        additions = [f"{name}={value}" for name, value in env.items()]
        await self._call_without_result(Op.LOG_IN, protocol.texts(additions))

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 64 * MIB) -> bytes:
        chunks: list[bytes] = []
        left = limit
        while left > 0:
            wanted = min(left, protocol.READ_CHUNK)
            body = struct.pack("<QQ", offset, wanted) + _path(path)
            chunk = protocol.content((await self._path_call(Op.READ, body, path)).body, wanted)
            chunks.append(chunk)
            offset += len(chunk)
            left -= len(chunk)
            if len(chunk) < wanted:
                break
        return b"".join(chunks)

    async def write_file(
        self, path: str, content: bytes, *, executable: bool | None = None, parents: bool = False, new: bool = False
    ) -> bool:
        if len(content) > protocol.CONTENT_MAX:
            raise PathError(errno.EFBIG, path, f"{len(content)} bytes exceed the limit of {protocol.CONTENT_MAX}")
        flags = (WriteFlag.PARENTS if parents else 0) | (WriteFlag.NEW if new else 0)
        if executable is not None:
            flags |= WriteFlag.EXECUTABLE if executable else WriteFlag.PLAIN
        body = bytes((flags,)) + _path(path) + protocol.blob(content)
        return protocol.replaced((await self._path_call(Op.WRITE, body, path)).body)

    async def write_link(self, path: str, target: str) -> None:
        await self._path_call_without_result(Op.LINK, _path(path) + _path(target), path)

    async def remove_path(self, path: str) -> None:
        await self._path_call_without_result(Op.REMOVE, _path(path), path)

    async def stat(self, path: str) -> FileEntry:
        return protocol.file_entry((await self._path_call(Op.STAT, _path(path), path)).body, path)

    async def walk(self, root: str, *, prune: Sequence[str] = ()) -> list[FileEntry]:
        answer = await self._path_call(Op.WALK, _path(root) + protocol.texts(prune), root)
        # Parsing the maximum answer takes up to 2 s, so it runs in a thread.
        return await asyncio.to_thread(protocol.walk_entries, answer.body)

    async def work_in(self, path: str) -> None:
        """Set the directory in which relative paths and commands start. Raises PathError if it cannot be entered."""
        await self._path_call_without_result(Op.WORK_IN, _path(path), path)

    async def kill_all(self) -> None:
        await self._call_without_result(Op.KILL_ALL, b"")

    async def _run(self, op: Op, body: bytes, timeout_s: float, output_limit: int, call_id: str | None) -> ExecResult:
        answer = await self._call_with_id(op, body, timeout_s + ANSWER_S, call_id)
        _check_accepted(answer, op)
        return protocol.exec_result(answer.body, output_limit)

    async def _call_with_id(self, op: Op, body: bytes, wait_s: float, call_id: str | None) -> ServerReply:
        if call_id is None:
            return await self._call(op, body, wait_s)
        return await self._call_once(op, body, wait_s, call_id)

    async def _call_once(self, op: Op, body: bytes, wait_s: float, call_id: str) -> ServerReply:
        """Make a call with an idempotency key. A repetition waits for the first, whose answer comes only once."""
        async with self._call_locks.setdefault(call_id, asyncio.Lock()):
            answer = await self._call(op, body, wait_s, request_id=protocol.request_id_of(call_id))
        if answer.errno == errno.EBADMSG:
            raise SpecError(f"call id {call_id!r} belongs to a different call; use a new id for each call")
        if answer.errno == errno.ESTALE:
            raise AnswerLost(f"call {call_id!r} has run, but its answer is no longer kept")
        return answer

    async def _call_without_result(self, op: Op, body: bytes) -> None:
        answer = await self._call(op, body)
        _check_accepted(answer, op)
        protocol.empty(answer.body)

    async def _path_call(self, op: Op, body: bytes, path: str) -> ServerReply:
        try:
            answer = await self._call(op, body)
        except protocol.Unsendable as error:
            raise PathError(errno.E2BIG, path, f"the request {error}") from None
        if answer.errno:
            raise PathError(answer.errno, path, _path_error(op, answer.errno))
        return answer

    async def _path_call_without_result(self, op: Op, body: bytes, path: str) -> None:
        protocol.empty((await self._path_call(op, body, path)).body)

    async def _call(
        self, op: Op, body: bytes, wait_s: float = ANSWER_S, *, request_id: int | None = None
    ) -> ServerReply:
        replayable = None if request_id is not None else current_call()
        if replayable is None:
            return await self._request(op, body, wait_s, request_id)
        if op in READ_OPS:
            return await replayable.read(op, body, lambda: self._request(op, body, wait_s))
        return await replayable.change(lambda chosen: self._request(op, body, wait_s, chosen))

    async def _request(self, op: Op, body: bytes, wait_s: float, request_id: int | None = None) -> ServerReply:
        if request_id is None:
            self._next_id += 1
            request_id = self._next_id
        data = protocol.frame(request_id, op, body)
        try:
            async with self._limits.limit(wait_s):
                return await self._connection.ask(request_id, data)
        except TimeoutError:
            raise SandboxGone(f"the tool server did not answer within {wait_s:g} s") from None
        except asyncio.CancelledError:
            self._cancel(request_id, op)
            raise

    def _cancel(self, request_id: int, op: Op) -> None:
        if op not in (Op.EXEC, Op.SHELL, Op.START, Op.LISTEN):
            return
        self._next_id += 1
        with contextlib.suppress(SandboxGone, ProtocolError):  # the connection is lost, so nothing can be cancelled
            self._connection.send(protocol.frame(self._next_id, Op.CANCEL, struct.pack("<Q", request_id)))


def _check_accepted(answer: ServerReply, op: Op) -> None:
    if answer.errno:
        raise SandboxGone(f"the tool server refused {op.name.lower()}: {os.strerror(answer.errno)}")


def _check_job(answer: ServerReply, job: int) -> None:
    match answer.errno:
        case 0:
            return
        case errno.ESRCH:
            raise JobError(f"there is no background job {job}")
        case errno.EPIPE:
            raise JobError(f"background job {job} takes no more input: it has ended")
        case number:
            raise JobError(f"background job {job}: {os.strerror(number)}")


def _path_error(op: Op, number: int) -> str:
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
        raise SpecError(f"name of a shell session is invalid: it {error}") from None
    if len(data) > protocol.SESSION_MAX + 5:
        raise SpecError(f"name of a shell session {name!r} is longer than {protocol.SESSION_MAX} bytes; shorten it")
    return data


def _not_started(error: protocol.Unsendable) -> ExecResult:
    return ExecResult(126, Capture(f"toolserver: the command {error}\n".encode()), Capture(b""), False, 0.0)

"""The wire format between host and tool server, as documented in ``toolserver/src/request.h``.

Answers are untrusted: every length is limited and every value validated. Invalid data raises ProtocolError.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from sandboxes.errors import ProtocolError
from sandboxes.interface import MIB, Capture, ExecResult, FileEntry, FileKind, JobOutput

VERSION: Final = 3
FRAME_MAX: Final = 66 * MIB
REQUEST_MAX: Final = 65 * MIB - 9
CONTENT_MAX: Final = 64 * MIB
CAPTURE_MAX: Final = 32 * MIB
READ_CHUNK: Final = 4 * MIB
TEXTS_MAX: Final = 65536
SESSION_MAX: Final = 63
TIMEOUT_MAX_MS: Final = 2**32 - 1
JOB_OUTPUT_MAX: Final = 28_000
INPUT_MAX: Final = MIB
ENVIRONMENT_MAX: Final = 4096
FIRST_CALLER_ID: Final = 1 << 63
"""Set in ids that are derived from a caller's ``call_id``."""

_HEADER = struct.Struct("<IQB")
_STAT = struct.Struct("<BIQq")
_WALK_ENTRY = struct.Struct("<BIQqI")
"""Without the path, whose length comes last."""
_KINDS = {ord("f"): FileKind.FILE, ord("d"): FileKind.DIRECTORY, ord("l"): FileKind.SYMLINK, ord("o"): FileKind.OTHER}
_TIMED_OUT, _SHELL_LOST, _STILL_RUNNING = 1, 2, 4


class Op(IntEnum):
    PING = 1
    EXEC = 2
    SHELL = 3
    RESTART = 4
    READ = 5
    WRITE = 6
    LINK = 7
    REMOVE = 8
    STAT = 9
    WALK = 10
    KILL_ALL = 11
    CANCEL = 12
    WORK_IN = 13
    LOG_IN = 14
    START = 15
    LISTEN = 16
    TYPE = 17
    END = 18


class WriteFlag(IntEnum):
    EXECUTABLE = 1
    PLAIN = 2
    PARENTS = 4
    NEW = 8


class Unsendable(ValueError):
    """The request cannot be encoded. The message is a predicate that follows "the command"."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """An answer. ``errno``: 0, or the error of a refused request, which has an empty ``body``."""

    id: int
    errno: int
    body: bytes


def frame(request_id: int, op: Op, *parts: bytes) -> bytes:
    """Encode a request. Raises Unsendable."""
    body = b"".join(parts)
    if len(body) > REQUEST_MAX:
        raise Unsendable(f"is larger than {REQUEST_MAX} bytes")
    return _HEADER.pack(9 + len(body), request_id, op) + body


def request_id_of(call_id: str) -> int:
    """Return the request id of ``call_id``. It differs from counted ids, which start at 62 random bits."""
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).digest()
    return FIRST_CALLER_ID | int.from_bytes(digest[:8], "little")


def blob(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def text(value: str) -> bytes:
    """Encode a string. Surrogates that stand for undecodable bytes become those bytes.

    Raises Unsendable for zero bytes and other surrogates.
    """
    try:
        data = value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Unsendable("holds half a surrogate pair") from None
    if b"\0" in data:
        raise Unsendable("holds a zero byte")
    return blob(data) + b"\0"


def texts(values: Sequence[str]) -> bytes:
    if len(values) > TEXTS_MAX:
        raise Unsendable(f"is a list of more than {TEXTS_MAX}")
    return len(values).to_bytes(4, "little") + b"".join(map(text, values))


def encode_limits(timeout_s: float, output_limit: int) -> bytes:
    """Encode a time-out of at least 1 ms, and an output limit, half for the head and half for the tail."""
    limit = max(0, min(output_limit, CAPTURE_MAX))
    timeout_ms = max(1, min(round(timeout_s * 1000), TIMEOUT_MAX_MS))
    return struct.pack("<III", timeout_ms, limit - limit // 2, limit // 2)


# All fields of the request, by keyword; the only caller passes on the arguments of Sandbox.exec.
def exec_request(
    argv: Sequence[str],
    *,
    cwd: str | None,
    env: Mapping[str, str],
    stdin: bytes,
    timeout_s: float,
    output_limit: int,
    merge_stderr: bool,
    login: bool = False,
) -> bytes:
    settings = [f"{name}={value}" for name, value in env.items()]
    return b"".join(
        (
            bytes((merge_stderr | login << 1,)),
            encode_limits(timeout_s, output_limit),
            text(cwd or ""),
            texts(argv),
            texts(settings),
            blob(stdin),
        )
    )


class FrameSplitter:
    """Splits a byte stream into answers."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[ServerReply]:
        """Return the answers that ``data`` completes. Raises ProtocolError; then no more data may be fed."""
        self._buffer += data
        answers = []
        at = 0
        while len(self._buffer) - at >= 4:
            length = int.from_bytes(self._buffer[at : at + 4], "little")
            if not 9 <= length <= FRAME_MAX:
                raise ProtocolError(f"the tool server sent a frame of {length} bytes")
            if len(self._buffer) - at < 4 + length:
                break
            answers.append(_answer(bytes(memoryview(self._buffer)[at + 4 : at + 4 + length])))
            at += 4 + length
        del self._buffer[:at]
        return answers


def _answer(data: bytes) -> ServerReply:
    request_id, refused = int.from_bytes(data[:8], "little"), data[8]
    if refused == 0:
        return ServerReply(request_id, 0, data[9:])
    errno = int.from_bytes(data[9:], "little")
    if refused != 1 or len(data) != 13 or not 1 <= errno <= 4095:
        raise ProtocolError("the tool server sent an invalid refusal")
    return ServerReply(request_id, errno, b"")


class BodyReader:
    """Reads the fields of an answer's body in order. Every method raises ProtocolError for invalid data."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._body):
            raise ProtocolError("the tool server sent an answer that is too short")
        data = self._body[self._at : end]
        self._at = end
        return data

    def unsigned(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def blob(self, limit: int) -> bytes:
        length = self.unsigned(4)
        if length > limit:
            raise ProtocolError(f"the tool server sent {length} bytes, more than the limit of {limit}")
        return self.take(length)

    @property
    def exhausted(self) -> bool:
        return self._at == len(self._body)

    def end(self) -> None:
        if not self.exhausted:
            raise ProtocolError("the tool server sent an answer that is too long")


def empty(body: bytes) -> None:
    BodyReader(body).end()


def version(body: bytes) -> int:
    reader = BodyReader(body)
    value = reader.unsigned(2)
    reader.end()
    return value


def content(body: bytes, limit: int) -> bytes:
    reader = BodyReader(body)
    data = reader.blob(limit)
    reader.end()
    return data


def replaced(body: bytes) -> bool:
    reader = BodyReader(body)
    value = reader.unsigned(1)
    reader.end()
    if value > 1:
        raise ProtocolError(f"the tool server sent {value} in place of a boolean")
    return bool(value)


@dataclass(frozen=True, slots=True)
class _Result:
    """The RESULT of a command or job."""

    exit_code: int
    flags: int
    duration_s: float
    spill: str | None
    stdout: Capture
    stderr: Capture


def exec_result(body: bytes, output_limit: int) -> ExecResult:
    result = _result(body, _TIMED_OUT | _SHELL_LOST, output_limit)
    timed_out = bool(result.flags & _TIMED_OUT)
    return ExecResult(
        exit_code=None if timed_out else result.exit_code,
        stdout=result.stdout,
        stderr=result.stderr,
        timed_out=timed_out,
        duration_s=result.duration_s,
        shell_lost=bool(result.flags & _SHELL_LOST),
        spill=result.spill,
    )


def _result(body: bytes, allowed_flags: int, output_limit: int) -> _Result:
    reader = BodyReader(body)
    exit_code, flags, duration_us = reader.unsigned(4), reader.unsigned(1), reader.unsigned(8)
    if exit_code > 255 or flags & ~allowed_flags:
        raise ProtocolError(f"the tool server sent exit code {exit_code} with flags {flags}")
    spill = _spill(reader)
    stdout, stderr = _capture(reader, output_limit), _capture(reader, output_limit)
    reader.end()
    return _Result(exit_code, flags, duration_us / 1e6, spill, stdout, stderr)


def job_output(body: bytes) -> JobOutput:
    result = _result(body, _STILL_RUNNING, JOB_OUTPUT_MAX)
    return JobOutput(result.stdout, None if result.flags else result.exit_code, result.duration_s, result.spill)


def number(body: bytes) -> int:
    reader = BodyReader(body)
    value = reader.unsigned(4)
    reader.end()
    return value


def listen_request(job: int, wait_s: float, quiet_s: float) -> bytes:
    wait_ms, quiet_ms = (max(0, min(round(seconds * 1000), TIMEOUT_MAX_MS)) for seconds in (wait_s, quiet_s))
    return struct.pack("<III", job, wait_ms, quiet_ms)


def _spill(reader: BodyReader) -> str | None:
    path = reader.blob(64)
    directory, _, name = path.rpartition(b"/")
    if reader.take(1) != b"\0" or (path and (directory != b"/tmp/.farm-output" or not name.isdigit())):
        raise ProtocolError("the tool server sent an invalid spill path")
    return path.decode("ascii") or None


def _capture(reader: BodyReader, output_limit: int) -> Capture:
    limit = max(output_limit, 4608)  # the server's own error message if a program does not start
    head, tail = reader.blob(limit), reader.blob(limit)
    elided = reader.unsigned(8)
    if len(head) + len(tail) > limit:
        raise ProtocolError(f"the tool server sent {len(head) + len(tail)} bytes, more than the limit of {limit}")
    return Capture(head, tail, elided) if elided else Capture(head + tail)


def file_entry(body: bytes, path: str) -> FileEntry:
    reader = BodyReader(body)
    entry = _read_file_entry(reader, path)
    reader.end()
    return entry


def _read_file_entry(reader: BodyReader, path: str) -> FileEntry:
    return _file_entry(path, *_STAT.unpack(reader.take(_STAT.size)))


def _file_entry(path: str, kind: int, mode: int, size: int, mtime_ns: int) -> FileEntry:
    if kind not in _KINDS or mode > 0o7777 or size >= 2**63:
        raise ProtocolError("the tool server sent an invalid file entry")
    return FileEntry(path, _KINDS[kind], mode, size, mtime_ns)


def walk_entries(body: bytes) -> list[FileEntry]:
    """Parse the answer to WALK. Return entries sorted by path; paths are unique, relative and below the root."""
    entries: dict[str, FileEntry] = {}
    at = 0
    while at < len(body):  # without BodyReader, which takes twice as long
        path_start = at + _WALK_ENTRY.size
        if path_start > len(body):
            raise ProtocolError("the tool server sent an answer that is too short")
        *stat, length = _WALK_ENTRY.unpack_from(body, at)
        at = path_start + length
        if length > MIB or at > len(body):
            raise ProtocolError(f"the tool server sent an invalid path of {length} bytes")
        path = body[path_start:at].decode("utf-8", "surrogateescape")
        entry = _file_entry(path, *stat)
        if entry.kind is FileKind.DIRECTORY or path in entries or not _is_below(path):
            raise ProtocolError("the tool server sent an entry that cannot be in the directory")
        entries[path] = entry
    return [entries[path] for path in sorted(entries)]


def _is_below(path: str) -> bool:
    return "\0" not in path and not {"", ".", ".."}.intersection(path.split("/"))

"""The wire: what a decoder makes of nonsense, and what the server makes of repeats and of garbage."""

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.errors import ProtocolError
from sandboxes.interface import ExecResult, FileEntry
from sandboxes.toolserver import protocol
from sandboxes.toolserver.protocol import FrameSplitter, Op, ServerReply
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import Served, eventually, ordinary

WAIT_S = 60.0

# Decoding


def answer_frame(request_id: int, refused: int, body: bytes) -> bytes:
    return struct.pack("<IQB", 9 + len(body), request_id, refused) + body


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=200))), st.data())
def test_frames_are_split_at_any_cut(answers: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(answer_frame(request_id, 0, body) for request_id, body in answers)
    splitter, out = FrameSplitter(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        out += splitter.feed(stream[:cut])
        stream = stream[cut:]
    assert out == [ServerReply(request_id, 0, body) for request_id, body in answers]


@given(st.binary(max_size=400))
def test_splitter_raises_only_protocol_errors(garbage: bytes) -> None:
    try:
        for answer in FrameSplitter().feed(garbage):
            assert 0 <= answer.errno <= 4095
    except ProtocolError:
        pass


@pytest.mark.parametrize("length", [0, 8, protocol.FRAME_MAX + 1, 2**32 - 1])
def test_frame_of_impossible_length_is_refused_early(length: int) -> None:
    with pytest.raises(ProtocolError, match=str(length)):
        FrameSplitter().feed(struct.pack("<I", length))


DECODERS: list[Callable[[bytes], object]] = [
    protocol.empty,
    protocol.version,
    protocol.number,
    protocol.job_output,
    protocol.walk_entries,
    lambda body: protocol.content(body, 100),
    lambda body: protocol.exec_result(body, 100),
    lambda body: protocol.file_entry(body, "p"),
]


@given(st.sampled_from(DECODERS), st.binary(max_size=300))
def test_decoders_raise_only_protocol_errors(decoder: Callable[[bytes], object], body: bytes) -> None:
    try:
        decoded = decoder(body)
    except ProtocolError:
        return
    if isinstance(decoded, ExecResult):
        assert len(decoded.stdout.head) + len(decoded.stdout.tail) <= 4608
        assert decoded.exit_code is None or 0 <= decoded.exit_code <= 255
        assert decoded.spill is None or decoded.spill.startswith("/tmp/.farm-output/")
    elif isinstance(decoded, list):
        assert all(isinstance(entry, FileEntry) and not entry.path.startswith("/") for entry in decoded)


def result_body(*, code: int = 0, flags: int = 0, spill: bytes = b"", head: bytes = b"", tail: bytes = b"") -> bytes:
    nothing = struct.pack("<IIQ", 0, 0, 0)
    stdout = protocol.blob(head) + protocol.blob(tail) + struct.pack("<Q", 5)
    return struct.pack("<IBQ", code, flags, 1500) + protocol.blob(spill) + b"\0" + stdout + nothing


def test_result_is_decoded() -> None:
    result = protocol.exec_result(result_body(code=3, spill=b"/tmp/.farm-output/7", head=b"h", tail=b"t"), 10)
    assert (result.exit_code, result.spill, result.duration_s) == (3, "/tmp/.farm-output/7", 0.0015)
    assert (result.stdout.head, result.stdout.tail, result.stdout.elided) == (b"h", b"t", 5)


@pytest.mark.parametrize(
    "body",
    [
        result_body(code=256),
        result_body(flags=4),
        result_body(spill=b"/etc/passwd"),
        result_body(spill=b"/tmp/.farm-output/../../etc/passwd"),
        result_body(spill=b"/tmp/.farm-output/\xb2"),
        result_body(head=b"x" * 3000, tail=b"x" * 3000),
        result_body()[:-1],
        result_body() + b"\0",
    ],
)
def test_invalid_result_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.exec_result(body, 100)


def walk_body(*paths: bytes, kind: bytes = b"f", mode: int = 0o644, size: int = 1) -> bytes:
    return b"".join(kind + struct.pack("<IQq", mode, size, -1) + protocol.blob(path) for path in paths)


def test_walked_paths_are_sorted() -> None:
    assert [entry.path for entry in protocol.walk_entries(walk_body(b"b", b"a/c", b"a"))] == ["a", "a/c", "b"]


@pytest.mark.parametrize(
    "body",
    [walk_body(path) for path in (b"", b"/a", b"a/", b"a//b", b"..", b"a/../b", b"./a", b"a\0b")]
    + [walk_body(b"a", b"a"), walk_body(b"a", kind=b"d"), walk_body(b"a", kind=b"x"), walk_body(b"a", mode=0o10000)]
    + [walk_body(b"a", size=2**63), walk_body(b"a")[:-1]],
)
def test_invalid_walk_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        protocol.walk_entries(body)


@given(st.text())
def test_text_is_encoded_or_unsendable(value: str) -> None:
    try:
        data = protocol.text(value)
    except protocol.Unsendable:
        assert "\0" in value or any("\ud800" <= character <= "\udfff" for character in value)
    else:
        assert os.fsdecode(data[4:-1]) == value


# The server


class Wire:
    """A connection on which a test writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._splitter = FrameSplitter()
        self._answers: list[ServerReply] = []

    @classmethod
    async def open(cls, served: Served) -> "Wire":
        return cls(*await asyncio.open_unix_connection(served.socket))

    def send(self, request_id: int, op: int, body: bytes = b"") -> None:
        self.writer.write(struct.pack("<IQB", 9 + len(body), request_id, op) + body)

    async def answer(self) -> ServerReply:
        async with asyncio.timeout(WAIT_S):
            while not self._answers:
                data = await self._reader.read(65536)
                assert data, "the server closed the connection"
                self._answers = self._splitter.feed(data)
        return self._answers.pop(0)

    async def is_cut_off(self) -> bool:
        """True once nothing more can come, whatever came before."""
        async with asyncio.timeout(WAIT_S):
            with contextlib.suppress(OSError):
                await self._reader.read()
        return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):  # it may have cut us off already
            await self.writer.wait_closed()


@pytest.fixture
async def served(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Served]:
    async with ordinary(toolbox, tmp_path) as served:
        yield served


@pytest.fixture
async def wire(served: Served) -> AsyncIterator[Wire]:
    wire = await Wire.open(served)
    yield wire
    wire.writer.transport.abort()


def shell_body(command: str) -> bytes:
    return protocol.encode_limits(WAIT_S, 1000) + protocol.text("main") + protocol.text(command)


def exec_body(script: str) -> bytes:
    return protocol.exec_request(
        ["sh", "-c", script], cwd=None, env={}, stdin=b"", timeout_s=WAIT_S, output_limit=1000, merge_stderr=False
    )


async def test_repeated_request_runs_once(served: Served, wire: Wire) -> None:
    for _ in range(3):
        wire.send(7, Op.EXEC, exec_body("echo x >> ran; sleep 0.2; cat ran"))
    answers = [await wire.answer() for _ in range(1)]
    wire.send(7, Op.EXEC, exec_body("echo x >> ran; sleep 0.2; cat ran"))
    answers.append(await wire.answer())
    assert answers[0] == answers[1]
    assert (served.home / "ran").read_text() == "x\n"


async def test_repeated_request_is_answered_on_new_connection(served: Served, wire: Wire) -> None:
    body = exec_body("echo x >> ran; until [ -e go ]; do sleep 0.01; done; echo done")
    wire.send(1, Op.EXEC, body)
    assert await eventually((served.home / "ran").exists)
    other, late = await Wire.open(served), await Wire.open(served)
    other.send(1, Op.EXEC, body)
    other.send(2, Op.PING)
    assert (await other.answer()).id == 2
    await wire.close()
    (served.home / "go").touch()
    first = await other.answer()
    late.send(1, Op.EXEC, body)
    assert await late.answer() == first
    assert protocol.exec_result(first.body, 1000).stdout.head == b"done\n"
    assert (served.home / "ran").read_text() == "x\n"
    await other.close()
    await late.close()


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (Op.SHELL, shell_body("echo x >> ran; cat ran")),
        (Op.WRITE, b"\x00" + protocol.text("ran") + protocol.blob(b"x\n")),
    ],
)
async def test_each_repeated_change_is_made_once(served: Served, wire: Wire, op: Op, body: bytes) -> None:
    wire.send(1, op, body)
    first = await wire.answer()
    before = (served.home / "ran").stat()
    wire.send(1, op, body)
    assert await wire.answer() == first
    after = (served.home / "ran").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


async def test_id_of_another_request_is_refused(wire: Wire) -> None:
    wire.send(1, Op.EXEC, exec_body("echo one"))
    await wire.answer()
    wire.send(1, Op.EXEC, exec_body("echo two"))
    assert (await wire.answer()).errno != 0


async def test_kept_answers_are_bounded(served: Served, wire: Wire) -> None:
    body = protocol.exec_request(
        ["head", "-c", "1000000", "/dev/zero"],
        cwd=None,
        env={},
        stdin=b"",
        timeout_s=WAIT_S,
        output_limit=1_000_000,
        merge_stderr=False,
    )
    for request_id in range(40):
        wire.send(request_id, Op.EXEC, body)
        assert len((await wire.answer()).body) > 1_000_000
    assert served.process.memory_info().rss < 16 * 1024 * 1024


async def test_client_that_never_reads_is_disconnected(served: Served, wire: Wire) -> None:
    (served.home / "big").write_bytes(bytes(4 * 1024 * 1024))
    body = struct.pack("<QQ", 0, 4 * 1024 * 1024) + protocol.text("big")
    for request_id in range(64):
        wire.send(request_id, Op.READ, body)
    await served.server.ping()
    assert await eventually(lambda: served.process.memory_info().rss < 200 * 1024 * 1024)
    await served.server.ping()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 64,
        b"\x00" * 64,
        struct.pack("<IQB", 9, 1, 0),
        struct.pack("<IQB", 9, 1, 99),
        struct.pack("<IQB", 9, 1, Op.EXEC),
        struct.pack("<IQB", 13, 1, Op.WALK) + b"\xff\xff\xff\xff",
        struct.pack("<IQB", 14, 1, Op.REMOVE) + struct.pack("<I", 1) + b"x",
        struct.pack("<IQB", 10, 1, Op.PING) + b"x",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_garbage_disconnects_only_its_sender(served: Served, wire: Wire, garbage: bytes) -> None:
    wire.writer.write(garbage)
    assert await wire.is_cut_off()
    await served.server.ping()


async def test_random_garbage_does_no_harm(served: Served) -> None:
    """Well-formed headers before random bodies; every operation but those that would do what the bytes say."""
    for seed in range(300):
        wire = await Wire.open(served)
        body = os.urandom(seed % 60) + bytes(seed % 7)
        wire.send(seed, (Op.PING, Op.EXEC, Op.SHELL, Op.RESTART, Op.READ, Op.STAT, Op.CANCEL, 77)[seed % 8], body)
        wire.writer.write(os.urandom(seed % 40))
        await wire.close()
    await served.server.ping()


async def test_request_may_arrive_byte_by_byte(wire: Wire) -> None:
    for byte in struct.pack("<IQB", 9, 1, Op.PING):
        wire.writer.write(bytes([byte]))
        await wire.writer.drain()
        await asyncio.sleep(0)
    assert await wire.answer() == ServerReply(1, 0, protocol.VERSION.to_bytes(2, "little"))


async def test_client_lost_during_request_does_no_harm(served: Served) -> None:
    for _ in range(40):
        wire = await Wire.open(served)
        wire.writer.write(struct.pack("<IQB", 1_000_000, 1, Op.WRITE) + b"x" * 1000)
        await wire.close()
    await served.server.ping()

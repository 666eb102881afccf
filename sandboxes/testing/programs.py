"""The programs of every fake sandbox."""

import asyncio
import posixpath
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sandboxes.interface import Capture, FileKind
from sandboxes.testing.files import FakeFiles, FakeNode

_ESCAPE = re.compile(r"\\(n|t|\\|[0-7]{1,3}|x[0-9A-Fa-f]{1,2})")


@dataclass
class Streams:
    """The streams of a program. ``out`` and ``err`` may be the same buffer."""

    stdin: bytes = b""
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)


def streams_of(stdin: bytes, merged: bool) -> Streams:
    out = bytearray()
    return Streams(stdin, out, out if merged else bytearray())


def captured(output: bytearray, limit: int) -> Capture:
    if len(output) <= limit:
        return Capture(bytes(output))
    head = limit // 2
    return Capture(bytes(output[:head]), bytes(output[len(output) - (limit - head) :]), len(output) - limit)


@dataclass
class FakeProcess:
    """The interface of a fake program: it reads ``argv`` and ``streams.stdin``, writes, and returns its exit status."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    files: FakeFiles
    streams: Streams

    def path(self, name: str) -> str:
        return posixpath.join(self.cwd, name)


Program = Callable[[FakeProcess], Awaitable[int]]


async def _echo(process: FakeProcess) -> int:
    process.streams.out += " ".join(process.argv[1:]).encode("utf-8", "surrogateescape") + b"\n"
    return 0


async def _printf(process: FakeProcess) -> int:
    text, *arguments = process.argv[1:]
    plain = _ESCAPE.sub(_escaped, text)
    process.streams.out += (plain % tuple(arguments) if arguments else plain).encode("latin-1")
    return 0


def _escaped(match: re.Match[str]) -> str:
    code = match[1]
    if code in ("n", "t", "\\"):
        return {"n": "\n", "t": "\t", "\\": "\\"}[code]
    return chr(int(code[1:], 16) if code.startswith("x") else int(code, 8))


async def _cat(process: FakeProcess) -> int:
    for name in process.argv[1:]:
        process.streams.out += process.files.read(process.path(name))
    if len(process.argv) == 1:
        process.streams.out += process.streams.stdin
    return 0


async def _sleep(process: FakeProcess) -> int:
    await asyncio.sleep(float(process.argv[1]))
    return 0


async def _seq(process: FakeProcess) -> int:
    first, last = (int(word) for word in process.argv[1:])
    process.streams.out += "".join(f"{number}\n" for number in range(first, last + 1)).encode()
    return 0


async def _mkdir(process: FakeProcess) -> int:
    for name in process.argv[1:]:
        if name != "-p":
            process.files.make_directory(process.path(name))
    return 0


async def _rm(process: FakeProcess) -> int:
    for name in process.argv[1:]:
        if not name.startswith("-"):
            process.files.remove(process.path(name))
    return 0


async def _ln(process: FakeProcess) -> int:
    _, flag, target, name = process.argv
    if flag != "-s":
        return 1
    process.files.put(process.path(name), FakeNode(FileKind.SYMLINK, target.encode("utf-8", "surrogateescape"), 0o777))
    return 0


async def _mkfifo(process: FakeProcess) -> int:
    for name in process.argv[1:]:
        process.files.put(process.path(name), FakeNode(FileKind.OTHER))
    return 0


async def _env(process: FakeProcess) -> int:
    process.streams.out += "".join(f"{name}={value}\n" for name, value in process.env.items()).encode()
    return 0


async def _true(process: FakeProcess) -> int:
    return 0


async def _false(process: FakeProcess) -> int:
    return 1


PROGRAMS: Mapping[str, Program] = {
    "cat": _cat,
    "echo": _echo,
    "env": _env,
    "false": _false,
    "ln": _ln,
    "mkdir": _mkdir,
    "mkfifo": _mkfifo,
    "printf": _printf,
    "rm": _rm,
    "seq": _seq,
    "sleep": _sleep,
    "true": _true,
}

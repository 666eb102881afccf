"""How a journal lies on disk: one entry after the other, each whole, torn or not as it was written.

An entry is a header (u32 each, little-endian: the length and the CRC-32 of what follows, and the CRC-32 of these two)
and a msgpack map, whose first keys are its kind ``is`` and ``at_s``. A last entry that is torn does not count; anything
else that is not as it was written makes the whole of no use.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgpack

from sandboxes.interface import MIB

MOST_BYTES = 128 * MIB
"""A policy may say, and have read, as much as it likes; the node's disk is others' too."""
HEAD_BYTES = 64
"""They hold the first two keys with their values."""

_HEADER, _HEADER_CHECK = struct.Struct("<II"), struct.Struct("<I")
_msgpack: Any = msgpack


class JournalError(Exception):
    """What a file holds is no journal that this version could go on from."""


def entry(kind: str, at_s: float, told: dict[str, Any]) -> bytes:
    """Raises ValueError, TypeError or OverflowError for what msgpack cannot hold."""
    body = _msgpack.packb({"is": kind, "at_s": at_s, **told}, unicode_errors="surrogatepass")
    header = _HEADER.pack(len(body), zlib.crc32(body))
    return b"".join((header, _HEADER_CHECK.pack(zlib.crc32(header)), body))


def bodies(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The body of each whole entry, and where it ends; no more than one is held. Raises JournalError."""
    at, head = 0, _HEADER.size + _HEADER_CHECK.size
    while len(header := file.read(head)) == head:
        size, checksum = _HEADER.unpack_from(header)
        (check,) = _HEADER_CHECK.unpack_from(header, _HEADER.size)
        if zlib.crc32(header[: _HEADER.size]) != check or size > MOST_BYTES:
            raise JournalError("it is not as it was written")
        body = file.read(size)
        if len(body) < size:
            return
        if zlib.crc32(body) != checksum:
            raise JournalError("it is not as it was written")
        at += head + size
        yield body, at


def unpacked(body: bytes) -> dict[str, Any]:
    found = _msgpack.unpackb(body, unicode_errors="surrogatepass", strict_map_key=False)
    if not isinstance(found, dict):
        raise JournalError("an entry is no map")
    return found


def kind_and_time(body: bytes) -> tuple[str, float]:
    """Of an entry, without the rest of it. Raises JournalError."""
    head = _msgpack.Unpacker()
    head.feed(body[:HEAD_BYTES])
    try:
        head.read_map_header()
        names, values = zip(*((head.unpack(), head.unpack()) for _ in range(2)), strict=True)
    except Exception as error:  # msgpack has many, and none in common
        raise JournalError(f"an entry cannot be read: {error!r}") from None
    if names != ("is", "at_s") or not isinstance(values[0], str) or not isinstance(values[1], float):
        raise JournalError("an entry does not say what it is")
    return values[0], values[1]

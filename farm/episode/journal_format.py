"""The file format of a journal: one entry after the other.

An entry is a header (u32 each, little-endian: the length and the CRC-32 of what follows, and the CRC-32 of these two)
and a msgpack map, whose first keys are its kind ``is`` and ``at_s``. A last entry that is incomplete does not
count; any other damage makes the whole journal useless.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgpack

from sandboxes.interface import MIB

MOST_BYTES = 128 * MIB
"""Limit of a journal, because a policy decides how much is written and all episodes share the node's disk."""
HEAD_BYTES = 64
"""Bytes that hold the first two keys with their values."""

_HEADER, _HEADER_CHECK = struct.Struct("<II"), struct.Struct("<I")
_msgpack: Any = msgpack


class JournalError(Exception):
    """A file is no journal from which this version can go on."""


def entry(kind: str, at_s: float, fields: dict[str, Any]) -> bytes:
    """Encode one entry. Raises ValueError, TypeError or OverflowError for what msgpack cannot hold."""
    body = _msgpack.packb({"is": kind, "at_s": at_s, **fields}, unicode_errors="surrogatepass")
    header = _HEADER.pack(len(body), zlib.crc32(body))
    return b"".join((header, _HEADER_CHECK.pack(zlib.crc32(header)), body))


def bodies(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield the body of each whole entry and its end; at most one is in memory. Raises JournalError."""
    at, head = 0, _HEADER.size + _HEADER_CHECK.size
    while len(header := file.read(head)) == head:
        size, checksum = _HEADER.unpack_from(header)
        (check,) = _HEADER_CHECK.unpack_from(header, _HEADER.size)
        if zlib.crc32(header[: _HEADER.size]) != check or size > MOST_BYTES:
            raise JournalError("an entry is damaged")
        body = file.read(size)
        if len(body) < size:
            return
        if zlib.crc32(body) != checksum:
            raise JournalError("an entry is damaged")
        at += head + size
        yield body, at


def unpacked(body: bytes) -> dict[str, Any]:
    fields = _msgpack.unpackb(body, unicode_errors="surrogatepass", strict_map_key=False)
    if not isinstance(fields, dict):
        raise JournalError("an entry is no map")
    return fields


def kind_and_time(body: bytes) -> tuple[str, float]:
    """Return kind and time of an entry; the rest is not decoded. Raises JournalError."""
    head = _msgpack.Unpacker()
    head.feed(body[:HEAD_BYTES])
    try:
        head.read_map_header()
        names, values = zip(*((head.unpack(), head.unpack()) for _ in range(2)), strict=True)
    except Exception as error:  # msgpack has many, and none in common
        raise JournalError(f"an entry cannot be read: {error!r}") from None
    if names != ("is", "at_s") or not isinstance(values[0], str) or not isinstance(values[1], float):
        raise JournalError("an entry has no kind or no time")
    return values[0], values[1]

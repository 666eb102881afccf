"""The file format of a journal: one entry after the other, and replies and results as parts of an entry.

An entry is a header (u32 each, little-endian: the length and the CRC-32 of what follows, and the CRC-32 of these two)
and a msgpack map, whose first keys are its kind ``is`` and ``at_s``. A last entry that is incomplete does not
count; any other damage makes the whole journal useless.
"""

import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, BinaryIO

import msgpack

from farm.core.change import ChangeKind, FileChange
from farm.core.rollout import StopReason, WeightSpan
from farm.policy.base import Reply, Sampled, ToolCall
from sandboxes.interface import MIB
from sandboxes.tools.tool import ToolErrorKind, ToolResult

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


def reply_tokens(reply: Reply) -> "array[int]":
    """Return all tokens of the context up to the end of a reply; none if the engine sent none."""
    return reply.sampled.prompt_token_ids + reply.sampled.token_ids if reply.sampled else array("i")


def encode_reply(reply: Reply, before: "array[int]") -> dict[str, Any]:
    """Encode a reply. A prompt mostly begins with ``before``, the tokens up to here, which are not written again."""
    fields = asdict(replace(reply, sampled=None))
    if sampled := reply.sampled:
        kept = len(before) if sampled.prompt_token_ids[: len(before)] == before else 0
        fields["sampled"] = {
            "kept": kept,
            "prompt": sampled.prompt_token_ids[kept:].tobytes(),
            "tokens": sampled.token_ids.tobytes(),
            "logprobs": sampled.logprobs.tobytes(),
            "versions": [[span.version, span.start, span.end] for span in sampled.weight_versions],
        }
    return fields


def decode_reply(fields: dict[str, Any], before: "array[int]") -> Reply:
    sampled = fields["sampled"]
    return Reply(
        **{
            **fields,
            "tool_calls": tuple(ToolCall(**call) for call in fields["tool_calls"]),
            "stop": StopReason(fields["stop"]) if fields["stop"] else None,
            "sampled": sampled and _decode_sampled(sampled, before),
        }
    )


def _decode_sampled(fields: dict[str, Any], before: "array[int]") -> Sampled:
    return Sampled(
        before[: fields["kept"]] + array("i", fields["prompt"]),
        array("i", fields["tokens"]),
        array("f", fields["logprobs"]),
        tuple(WeightSpan(*span) for span in fields["versions"]),
    )


def decode_result(fields: dict[str, Any]) -> ToolResult:
    kind = fields["error_kind"]
    return ToolResult(**{**fields, "error_kind": ToolErrorKind(kind) if kind else None})


def decode_file(path: str, kind: str, content: bytes, executable: bool) -> FileChange:
    return FileChange(path, ChangeKind(kind), content, executable)

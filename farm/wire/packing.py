"""msgpack, typed."""

from typing import Any

import msgpack

_pack: Any = msgpack.packb
_unpack: Any = msgpack.unpackb  # type: ignore[attr-defined]  # the package re-exports it implicitly
_packer: Any = msgpack.Packer  # type: ignore[attr-defined]


class MalformedRecord(ValueError):
    """Bytes that are not the record they should be; the message names the field."""


def pack(value: Any) -> bytes:
    return bytes(_pack(value))


def unpack(data: bytes) -> Any:
    """Raises MalformedRecord."""
    try:
        return _unpack(data, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedRecord(f"not msgpack: {error or type(error).__name__}") from None


def map_header(length: int) -> bytes:
    return bytes(_packer().pack_map_header(length))


def array_header(length: int) -> bytes:
    return bytes(_packer().pack_array_header(length))

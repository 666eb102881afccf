"""msgpack, typed."""

from typing import Any

import msgpack

_msgpack: Any = msgpack
"""Without the types that the package lacks."""


class MalformedRecord(ValueError):
    """Bytes that are not the record they should be; the message names the field."""


def pack(value: Any) -> bytes:
    return bytes(_msgpack.packb(value))


def unpack(data: bytes) -> Any:
    """Raises MalformedRecord."""
    try:
        return _msgpack.unpackb(data, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedRecord(f"not msgpack: {error or type(error).__name__}") from None


def map_header(length: int) -> bytes:
    return bytes(_msgpack.Packer().pack_map_header(length))


def array_header(length: int) -> bytes:
    return bytes(_msgpack.Packer().pack_array_header(length))

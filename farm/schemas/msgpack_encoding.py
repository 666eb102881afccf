"""A typed interface to msgpack."""

from typing import Any

import msgpack

_msgpack: Any = msgpack
"""The package as Any, because it has no types."""


class MalformedRecord(ValueError):
    """Raised for bytes that are not a valid record. The message names the field."""


def pack(value: Any) -> bytes:
    return bytes(_msgpack.packb(value))


def unpack(data: bytes) -> Any:
    """Unpack a msgpack value. Raises MalformedRecord."""
    try:
        return _msgpack.unpackb(data, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise MalformedRecord(f"not msgpack: {error or type(error).__name__}") from None


def map_header(length: int) -> bytes:
    return bytes(_msgpack.Packer().pack_map_header(length))


def array_header(length: int) -> bytes:
    return bytes(_msgpack.Packer().pack_array_header(length))

"""Serialize segments: the format of an indexing process's answer and of an index file.

Each segment is the length of a header, a header in msgpack, and the arrays that it names, which are used in place.
Inconsistent data raises BadIndex: a file may be truncated, and hostile text may control the process that parsed it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from sandboxes.search.errors import BadIndex
from sandboxes.search.index.segment import IndexSegment

_ALIGNED = 64
LENGTH = 8
"""Bytes of the length field before a header, and before a message between processes."""

FRAME_MAX = 1 << 30
_TEXTS = ("paths", "digests", "names")
_ARRAYS: Mapping[str, np.dtype[Any]] = {
    "files": np.dtype("<i4"),
    "firsts": np.dtype("<i4"),
    "lasts": np.dtype("<i4"),
    "lengths": np.dtype("<f4"),
    "priors": np.dtype("<f4"),
    "hashes": np.dtype("<u8"),
    "at": np.dtype("<i8"),
    "postings": np.dtype("<i4"),
    "counts": np.dtype("<u2"),
    "vectors": np.dtype("i1"),
}


_msgpack: Any = msgpack
"""msgpack as ``Any``, because the package has no complete type annotations."""


def encode(value: object) -> bytes:
    """Encode a value. Texts may contain surrogates that stand for raw bytes."""
    return bytes(_msgpack.packb(value, unicode_errors="surrogateescape"))


def decode(data: bytes | memoryview) -> Any:
    """Decode a value. Raises ValueError or UnpackException."""
    return _msgpack.unpackb(data, unicode_errors="surrogateescape")


def pack(segment: IndexSegment) -> bytes:
    arrays = [np.ascontiguousarray(getattr(segment, name), dtype) for name, dtype in _ARRAYS.items()]
    header = {name: list(getattr(segment, name)) for name in _TEXTS}
    header |= {"shapes": [array.shape for array in arrays]}
    head = encode(header)
    parts = [len(head).to_bytes(LENGTH, "little"), _padded(head, LENGTH)]
    parts += [_padded(array.tobytes()) for array in arrays]
    return b"".join(parts)


def unpack(data: bytes | memoryview) -> list[IndexSegment]:
    """Unpack all segments in ``data``; the arrays share its memory. Raises BadIndex."""
    try:
        return list(_segments(memoryview(data)))
    except BadIndex:
        raise
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
        raise BadIndex(str(error)) from None


def _segments(data: memoryview) -> Iterator[IndexSegment]:
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + LENGTH], "little")
        if length > len(data) - at - LENGTH:
            raise BadIndex("the header is longer than the data")
        head = decode(data[at + LENGTH : at + LENGTH + length])
        at += _end(LENGTH + length)
        arrays: dict[str, NDArray[Any]] = {}
        for (name, dtype), shape in zip(_ARRAYS.items(), head["shapes"], strict=True):
            if not all(isinstance(extent, int) and 0 <= extent < 1 << 40 for extent in shape):
                raise BadIndex(f"array {name} has an invalid shape")
            count = int(np.prod(shape, dtype=object))
            arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape) if count else np.zeros(shape, dtype)
            at += _end(count * dtype.itemsize)
        if at > len(data):
            raise BadIndex("the data is truncated")
        parts: dict[str, Any] = {name: head[name] for name in _TEXTS} | arrays
        segment = IndexSegment(**parts)
        _check(segment)
        yield segment


def _check(segment: IndexSegment) -> None:
    """Check the shapes and that every index is in range. Raises BadIndex."""
    rows, terms, posted = len(segment.files), len(segment.hashes), len(segment.postings)
    shapes_hold = (
        all(
            len(getattr(segment, name)) == rows for name in ("names", "firsts", "lasts", "lengths", "priors", "vectors")
        )
        and len(segment.paths) == len(segment.digests)
        and len(segment.counts) == posted
        and len(segment.at) == terms + 1
        and segment.vectors.ndim == 2
        and all(array.ndim == 1 for array in _flat(segment))
    )
    if not shapes_hold:
        raise BadIndex("the shapes of its arrays are inconsistent")
    numbers_hold = (
        _within(segment.files, len(segment.paths))
        and _within(segment.postings, rows)
        and int(segment.at[0]) == 0
        and int(segment.at[-1]) == posted
        and bool((np.diff(segment.at) >= 0).all())
        and all(isinstance(text, str) for text in (*segment.paths, *segment.names))
        and all(isinstance(digest, bytes) for digest in segment.digests)
    )
    if not numbers_hold:
        raise BadIndex("its numbers are out of range")


def _flat(segment: IndexSegment) -> Sequence[NDArray[Any]]:
    return [getattr(segment, name) for name in _ARRAYS if name != "vectors"]


def _within(numbers: NDArray[np.int32], end: int) -> bool:
    return not len(numbers) or (int(numbers.min()) >= 0 and int(numbers.max()) < end)


def _end(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED


def _padded(data: bytes, before: int = 0) -> bytes:
    return data + bytes(_end(before + len(data)) - before - len(data))

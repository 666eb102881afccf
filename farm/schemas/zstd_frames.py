"""zstd frames: a rollout is stored as one, and frames laid end to end are again a zstd stream (RFC 8878 §3)."""

import io

import zstandard

MAX_RECORD_BYTES = 512 * 1024 * 1024
"""The maximum of unpacked bytes per frame: Redis's own bound of a value."""

LEVEL = 3


class MalformedFrame(ValueError):
    """Raised for bytes that are not a zstd frame, or that would unpack to more than the bound."""


def pack_frame(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(data)


def unpack_frame(frame: bytes, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """Return the content of one frame that states its size. Raises MalformedFrame."""
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= max_bytes:
            raise MalformedFrame(f"a frame of {size} bytes; at most {max_bytes} are taken")
        return zstandard.ZstdDecompressor().decompress(frame)
    except zstandard.ZstdError as error:
        raise MalformedFrame(f"not a zstd frame: {error}") from None


def unpack_frames(data: bytes) -> bytes:
    """Return the content of a sequence of frames. Raises MalformedFrame."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            return reader.readall()
    except zstandard.ZstdError as error:
        raise MalformedFrame(f"not zstd frames: {error}") from None

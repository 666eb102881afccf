"""Read and write files of a few bytes, mostly of the kernel, with the minimum of system calls.

A read through a Python file object makes eight system calls, and each may hand the GIL to another thread at about 10 µs
each way, for example between a worker thread and a busy event loop.
"""

import os

_READ_BYTES = 1 << 16


def read_small_file(path: str | os.PathLike[str]) -> str:
    """Return the text of a file. Raises OSError."""
    text = b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while chunk := os.read(fd, _READ_BYTES):
            text += chunk
    finally:
        os.close(fd)
    return text.decode()


def write_small_file(path: str | os.PathLike[str], text: str, flags: int = 0) -> None:
    """Write ``text``. ``flags``: of open(2), such as O_CREAT; without it the file must exist. Raises OSError."""
    remaining = text.encode()
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        while remaining:
            remaining = remaining[os.write(fd, remaining) :]
    finally:
        os.close(fd)

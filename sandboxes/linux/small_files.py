"""Files of a few bytes, most of them the kernel's, read and written with as few system calls as there can be.

A file object of Python's makes eight for one read. At each, who waits for the interpreter's lock may take it: a read
in a thread beside a busy event loop, and the two hand the lock to and fro eight times, at some 10 µs each.
"""

import os

_READ_BYTES = 1 << 16


def read_small_file(path: str | os.PathLike[str]) -> str:
    """Raises OSError."""
    text = b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while part := os.read(fd, _READ_BYTES):
            text += part
    finally:
        os.close(fd)
    return text.decode()


def write_small_file(path: str | os.PathLike[str], text: str, flags: int = 0) -> None:
    """``flags``: of open(2), such as O_CREAT; without them it must be there. Raises OSError."""
    left = text.encode()
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
    try:
        while left:
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)

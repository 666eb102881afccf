"""Directories for the length of one piece of work: whoever makes one removes what the dead left in the same place.

Each is locked by its maker, flock(2), and the kernel lets go of the lock with the process.
"""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandboxes.trees import remove_tree

PREFIX = ".farm-scratch-"


@contextlib.contextmanager
def scratch(place: Path | None = None) -> Iterator[Path]:
    """An empty one below ``place``, the machine's directory for temporary files if None. Raises OSError."""
    place = place or Path(tempfile.gettempdir())
    sweep(place)
    path, lock = _made(place)
    try:
        yield path
    finally:
        try:
            remove_tree(path)
        finally:
            os.close(lock)


def sweep(place: Path | None = None) -> None:
    """Remove those whose makers are dead; what cannot be removed stays."""
    for path in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        if (lock := _lock(path)) is not None:
            with contextlib.suppress(OSError):
                remove_tree(path)
            os.close(lock)


def _made(place: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        if (lock := _lock(path)) is not None:
            return path, lock  # else somebody swept it before it was locked


def _lock(path: Path) -> int | None:
    """None where it is another's, somebody holds it, or it has gone."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own = os.fstat(lock)
        if own.st_uid == os.geteuid() and os.path.samestat(own, os.lstat(path)):
            return lock
    os.close(lock)
    return None

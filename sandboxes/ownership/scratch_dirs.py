"""Directories for the length of one piece of work: whoever makes one removes what the dead left in the same place.

Each is locked by its maker, flock(2), and the kernel lets go of the lock with the process.
"""

import contextlib
import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sandboxes.linux.remove_tree import remove_tree

PREFIX = ".farm-scratch-"

log = logging.getLogger(__name__)


@contextlib.contextmanager
def scratch(place: Path | None = None) -> Iterator[Path]:
    """An empty one below ``place``, the machine's directory for temporary files if None. Raises OSError."""
    place = place or Path(tempfile.gettempdir())
    sweep(place)
    path, lock = _made(place)
    try:
        yield path
    finally:
        _remove(path, lock)


def sweep(place: Path | None = None) -> None:
    """Remove those whose makers are dead; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for path in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove(path, _lock(path))


def _made(place: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        try:
            return path, _lock(path)
        except (BlockingIOError, FileNotFoundError):
            continue  # somebody sweeps it, who saw it before it was locked
        except OSError:
            path.rmdir()
            raise


def _lock(path: Path) -> int:
    """Raises OSError: BlockingIOError where somebody holds it, FileNotFoundError where it has gone."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own = os.fstat(lock)
        if own.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another's", str(path))
        if not os.path.samestat(own, os.lstat(path)):
            raise FileNotFoundError(errno.ENOENT, "gone, and another is there", str(path))
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove(path: Path, lock: int) -> None:
    try:
        remove_tree(path)
    except OSError as error:  # the next sweep tries again
        log.warning("%s", error)
    finally:
        os.close(lock)

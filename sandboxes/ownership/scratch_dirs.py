"""Temporary directories for one piece of work. A new one removes those of dead processes in the same parent.

Each is locked by its creator with flock(2), and the kernel releases the lock when the process ends.
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
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new empty directory in ``parent`` (None: the system's temporary directory). Raises OSError."""
    parent = parent or Path(tempfile.gettempdir())
    sweep(parent)
    path, lock = _make(parent)
    try:
        yield path
    finally:
        _remove(path, lock)


def sweep(parent: Path | None = None) -> None:
    """Remove directories whose creators are dead. Those that cannot be removed stay."""
    with contextlib.suppress(OSError):
        for path in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove(path, _lock(path))


def _make(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            return path, _lock(path)
        except (BlockingIOError, FileNotFoundError):
            continue  # another process removed it in a sweep before it was locked
        except OSError:
            path.rmdir()
            raise


def _lock(path: Path) -> int:
    """Lock a directory. Raises BlockingIOError if it is locked, FileNotFoundError if it was removed."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own = os.fstat(lock)
        if own.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "directory belongs to another user", str(path))
        if not os.path.samestat(own, os.lstat(path)):
            raise FileNotFoundError(errno.ENOENT, "directory was replaced by another", str(path))
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove(path: Path, lock: int) -> None:
    try:
        remove_tree(path)
    except OSError as error:  # the next sweep retries
        log.warning("scratch directory %s was not removed; the next sweep retries: %s", path, error)
    finally:
        os.close(lock)

"""Hold file locks on the inodes that all sandboxes of a machine share, so that sandboxes can neither take nor see any.

Neither mounts nor seccomp can keep a program from locking its own descriptors, and two kinds of inodes are shared:

| inode                                                         | the farm's lock | what a sandbox gets              |
|---------------------------------------------------------------|-----------------|----------------------------------|
| of epoll(7), eventfd(2), timerfd(2), signalfd(2), inotify(7), | exclusive       | no lock at all, and always the   |
| landlock(7), before Linux 6.9 pidfd_open(2): one per machine  |                 | same conflicting lock reported   |
| of ``/proc/self/ns/*``, if a sandbox has no such namespace of | shared          | only shared locks, and always    |
| its own                                                       |                 | the same lock reported           |

Files of the second kind can only be opened for reading, which allows only shared locks. The kernel lists locks in the
order in which they were taken, so F_GETLK reports the farm's lock, which is older than every sandbox.

One process holds an exclusive lock, and the next one waits for it. Between two farms, and after the death of a farm, a
surviving sandbox can take the lock.
"""

import fcntl
import logging
import os
import select
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

NAMESPACES = Path("/proc/self/ns")
F_OFD_SETLK = 37
"""Command of fcntl(2) for open file description locks, which survive a close of another descriptor of the file."""
RETRY_S = 0.5


class SharedInodes:
    """File locks on all shared inodes, from ``__init__`` to ``close``."""

    def __init__(self) -> None:
        self._locks = [
            _anonymous_inode(),
            *(_InodeLock(_open(path), exclusive=False) for path in sorted(NAMESPACES.iterdir())),
        ]
        self._closed = threading.Event()
        self._waiter: threading.Thread | None = None
        pending = [lock for lock in self._locks if not lock.take()]
        if pending:
            log.info("another process holds the locks on shared inodes; this process waits until they are free")
            self._waiter = threading.Thread(
                target=_retry_until_taken, args=(pending, self._closed), daemon=True, name="shared inodes"
            )
            self._waiter.start()

    def close(self) -> None:
        """Give up the locks. Idempotent."""
        self._closed.set()
        if self._waiter is not None:
            self._waiter.join()
        while self._locks:
            os.close(self._locks.pop().fd)


@dataclass(frozen=True, slots=True)
class _InodeLock:
    fd: int
    exclusive: bool

    def take(self) -> bool:
        """Return False if another process holds a lock that excludes this one."""
        try:
            kind = fcntl.F_WRLCK if self.exclusive else fcntl.F_RDLCK
            fcntl.flock(self.fd, (fcntl.LOCK_EX if self.exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            fcntl.fcntl(self.fd, F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
        except BlockingIOError:
            return False
        return True


def _anonymous_inode() -> _InodeLock:
    with select.epoll() as epoll:
        return _InodeLock(fcntl.fcntl(epoll.fileno(), fcntl.F_DUPFD_CLOEXEC, 0), exclusive=True)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _retry_until_taken(locks: list[_InodeLock], closed: threading.Event) -> None:
    """Retry until all locks are held or ``closed`` is set. A blocking call could not be interrupted."""
    while locks and not closed.wait(RETRY_S):
        locks = [lock for lock in locks if not lock.take()]

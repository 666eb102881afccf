"""Hold file locks on the inodes that all sandboxes of a machine share, so that sandboxes can neither take nor see any.

No mount and no filter of system calls keeps a program from locking its descriptors, and two kinds are shared:

| inode                                                         | the farm's lock | what a sandbox gets              |
|---------------------------------------------------------------|-----------------|----------------------------------|
| of epoll(7), eventfd(2), timerfd(2), signalfd(2), inotify(7), | exclusive       | no lock at all, and always the   |
| landlock(7), before Linux 6.9 pidfd_open(2): one per machine  |                 | same answer of what hinders it   |
| of ``/proc/self/ns/*``, if a sandbox has no such namespace of | shared          | shared locks alone, and always   |
| its own                                                       |                 | the same answer                  |

A file of the second kind opens for reading alone, which allows shared locks only. The kernel lists locks in the order
in which they were taken. So F_GETLK reports the farm's lock, which is older than every sandbox.

An exclusive lock is held by one process, and the next one waits for it: in the moment between two farms, and after the
death of a farm, a sandbox that lives on can lock.
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
"""fcntl(2): locks of the descriptor, which a close of another descriptor of the same file does not end."""
RETRY_S = 0.5


class SharedInodes:
    """File locks on all shared inodes, from ``__init__`` to ``close``."""

    def __init__(self) -> None:
        self._held = [_anonymous(), *(_Hold(_open(path), exclusive=False) for path in sorted(NAMESPACES.iterdir()))]
        self._closed = threading.Event()
        self._waiter: threading.Thread | None = None
        waiting = [hold for hold in self._held if not hold.take()]
        if waiting:
            log.info("another process holds the shared inodes; this one waits to hold them after it")
            self._waiter = threading.Thread(
                target=_take_in_turn, args=(waiting, self._closed), daemon=True, name="shared inodes"
            )
            self._waiter.start()

    def close(self) -> None:
        """Give up the locks. Idempotent."""
        self._closed.set()
        if self._waiter is not None:
            self._waiter.join()
        while self._held:
            os.close(self._held.pop().fd)


@dataclass(frozen=True, slots=True)
class _Hold:
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


def _anonymous() -> _Hold:
    with select.epoll() as made:
        return _Hold(fcntl.fcntl(made.fileno(), fcntl.F_DUPFD_CLOEXEC, 0), exclusive=True)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _take_in_turn(holds: list[_Hold], closed: threading.Event) -> None:
    """Try for the locks until all are held or ``closed`` is set. A blocking wait could not be ended."""
    while holds and not closed.wait(RETRY_S):
        holds = [hold for hold in holds if not hold.take()]

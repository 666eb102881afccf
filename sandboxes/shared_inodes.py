"""File locks on inodes that all sandboxes of the machine share, held by the farm so that no lock of a sandbox shows.

The descriptors of epoll(7), eventfd(2), timerfd(2), signalfd(2), inotify(7) and landlock(7) have one anonymous inode for
the whole machine, and before Linux 6.9 those of pidfd_open(2) too. The files in ``/proc/self/ns`` of namespaces that a
sandbox does not have of its own are shared as well. No mount and no filter of system calls keeps a program from locking
them. So an owner takes a shared lock of both kinds on all of each of these inodes before its first sandbox starts.

| a sandbox asks for        | answer                                                                            |
|---------------------------|-----------------------------------------------------------------------------------|
| a shared lock             | always granted: nobody can have an exclusive one                                  |
| an exclusive lock         | never granted, because of the owner's lock                                        |
| what hinders a lock       | always the owner's: the kernel keeps locks in the order in which they were taken  |
"""

import fcntl
import logging
import os
import select
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

NAMESPACES = Path("/proc/self/ns")
F_OFD_SETLK, F_OFD_SETLKW = 37, 38
"""fcntl(2): locks of the descriptor, which a close of another descriptor of the same file does not end."""
WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)


class SharedInodes:
    """Shared locks on the inodes that sandboxes of this machine share, from ``__init__`` to ``close``."""

    def __init__(self) -> None:
        self._held = list(_open_each())
        refused = [fd for fd in self._held if not _lock(fd)]
        if refused:
            log.warning(
                "a process holds an exclusive lock on an inode of the machine; sandboxes can signal to each other by "
                "locks until the process ends: find it in /proc/locks"
            )
            waiting = [os.dup(fd) for fd in refused]  # stay open after ``close``, until the locks are had
            threading.Thread(target=_lock_in_turn, args=(waiting,), daemon=True, name="shared inodes").start()

    def close(self) -> None:
        """Give up the locks. Idempotent."""
        while self._held:
            os.close(self._held.pop())


def _open_each() -> Iterator[int]:
    with select.epoll() as anonymous:
        yield fcntl.fcntl(anonymous.fileno(), fcntl.F_DUPFD_CLOEXEC, 0)
    for namespace in sorted(NAMESPACES.iterdir()):
        yield os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.fcntl(fd, F_OFD_SETLK, WHOLE_FILE)
    except BlockingIOError:
        return False
    return True


def _lock_in_turn(descriptors: list[int]) -> None:
    for fd in descriptors:
        fcntl.flock(fd, fcntl.LOCK_SH)
        fcntl.fcntl(fd, F_OFD_SETLKW, WHOLE_FILE)
        os.close(fd)

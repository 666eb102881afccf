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

One process holds an exclusive lock. Other processes block in the kernel until it is free, so that the next one has it
within milliseconds. After the death of the last farm, a surviving sandbox can take the lock.
"""

import fcntl
import functools
import logging
import os
import select
import struct
import threading
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

NAMESPACES = Path("/proc/self/ns")
F_OFD_SETLK, F_OFD_SETLKW = 37, 38
"""Commands of fcntl(2) for open file description locks, which survive a close of another descriptor of the file."""


@functools.cache
def lock_shared_inodes() -> None:
    """Take the locks on all shared inodes once, and hold them until this process ends.

    If another process holds them, threads of this process wait in the kernel.
    """
    pending = []
    for fd, exclusive in ((_anonymous_inode(), True), *((_open(path), False) for path in sorted(NAMESPACES.iterdir()))):
        pending += [(take, fd, exclusive) for take in (_take_flock, _take_range_lock) if not take(fd, exclusive)]
    if pending:
        log.info("another process holds the locks on shared inodes; this process waits until they are free")
    for waiting in pending:
        threading.Thread(target=_wait_for_lock, args=waiting, daemon=True, name="shared inodes").start()


class _Take(Protocol):
    def __call__(self, fd: int, exclusive: bool, *, wait: bool = False) -> bool:
        """Return False if ``wait`` is false and another process holds a lock that excludes this one."""


def _take_flock(fd: int, exclusive: bool, *, wait: bool = False) -> bool:
    kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    try:
        fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _take_range_lock(fd: int, exclusive: bool, *, wait: bool = False) -> bool:
    kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    try:
        command = F_OFD_SETLKW if wait else F_OFD_SETLK
        fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(take: _Take, fd: int, exclusive: bool) -> None:
    try:
        take(fd, exclusive, wait=True)
    except OSError as error:
        log.warning("sandboxes can signal to each other by file locks: waiting for a lock failed: %s", error)


def _anonymous_inode() -> int:
    with select.epoll() as epoll:
        return fcntl.fcntl(epoll.fileno(), fcntl.F_DUPFD_CLOEXEC, 0)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

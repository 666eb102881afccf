"""Read the open descriptors of a sandbox: in the descriptor tables of its tasks, and in flight between them.

Threads may have their own tables (clone(2) without ``CLONE_FILES``), so the table of each task is read once. A
descriptor that was sent over a unix socket (``SCM_RIGHTS``, unix(7)) and closed is in no table until it is received.
The kernel reports those that wait in an open socket, but not those of a socket that is itself in flight; that socket is
in the list of its network namespace and in no table.
"""

import contextlib
import ctypes
import os
import platform
import random
import stat
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
PAGE = 4096

MAX_IN_ONE_MESSAGE = 253
"""SCM_MAX_FD of the kernel: maximum number of descriptors in one message, assumed for each socket in flight."""
MAX_SOCKET_LIST_BYTES = 64 << 20
"""Maximum bytes that are read from a network namespace's list of unix sockets."""

KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
KCMP_FILE, KCMP_FILES = 0, 2
KCMP_LESS = 1
O_PATH = 0o10000000
PTMX = os.makedev(5, 2)
"""The device of all masters of pseudo-terminals."""

Inode = tuple[int, int]
"""Device and inode number."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class OpenDescriptors:
    """Totals of one sandbox's descriptors. ``sampled``: all totals are estimates from a random sample.

    ``listed_bytes``: sizes of directories that are being read; overlayfs keeps a list of their names in memory.
    ``rewound_bytes``: sizes of those at position 0, which may have such a list if they were read and rewound.
    ``anonymous``: descriptors of anonymous inodes, such as timers (timerfd_create(2)) and epoll instances.
    ``terminals``: masters of pseudo-terminals.
    """

    inodes: set[Inode] = field(default_factory=set)
    directories: int = 0
    listed_bytes: int = 0
    rewound_bytes: int = 0
    in_flight: int = 0
    anonymous: int = 0
    terminals: int = 0
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    """The descriptor table of one task, and of all tasks that share it. ``size``: its capacity."""

    task: int
    size: int


def read_descriptors(tasks: list[int], at_most: int) -> OpenDescriptors:
    """Read the descriptors of ``tasks``, or a sample if their tables have room for more than ``at_most``.

    The sample is a random set of descriptor numbers, the same in all tables. So an inherited descriptor, which has the
    same number in many tables, is counted once, and a total divided by the sampled fraction is unbiased. A sample does
    not search for sockets in flight: an unread socket may be in a table.
    """
    tables = list(_tables(tasks))
    capacity = sum(table.size for table in tables)
    reading = _DescriptorReader()
    if capacity <= at_most:
        listed = _sockets(tasks)
        for table in tables:
            with contextlib.suppress(OSError):  # the task has just ended
                reading.add(table.task, map(int, os.listdir(PROC / str(table.task) / "fd")))
        missing = {number for number in listed & _sockets(tasks) if number not in reading.sockets}
        reading.totals.in_flight += MAX_IN_ONE_MESSAGE * len(missing)
        return reading.totals
    largest = max(table.size for table in tables)
    numbers = random.sample(range(largest), max(1, largest * at_most // capacity))
    for table in tables:
        reading.add(table.task, (number for number in numbers if number < table.size))
    return _scaled(reading.totals, largest / len(numbers))


def _scaled(part: OpenDescriptors, times: float) -> OpenDescriptors:
    return OpenDescriptors(
        part.inodes,
        directories=round(part.directories * times),
        listed_bytes=round(part.listed_bytes * times),
        rewound_bytes=round(part.rewound_bytes * times),
        in_flight=round(part.in_flight * times),
        anonymous=round(part.anonymous * times),
        terminals=round(part.terminals * times),
        sampled=True,
    )


class _DescriptorReader:
    """Totals of the descriptors that were read. ``sockets``: inode numbers of all sockets among them."""

    def __init__(self) -> None:
        self.totals = OpenDescriptors()
        self.sockets: set[int] = set()
        self._tasks_by_descriptor: dict[tuple[int, Inode], list[int]] = defaultdict(list)

    def add(self, task: int, numbers: Iterable[int]) -> None:
        directory = f"{PROC}/{task}/fd/"
        for number in numbers:
            with contextlib.suppress(OSError):  # no such descriptor, or it was just closed
                status = os.stat(f"{directory}{number}")
                self.totals.inodes.add((status.st_dev, status.st_ino))
                if stat.S_ISDIR(status.st_mode):
                    self._add_directory(task, number, status)
                elif stat.S_ISSOCK(status.st_mode) and status.st_ino not in self.sockets:
                    self.sockets.add(status.st_ino)
                    self.totals.in_flight += int(_fdinfo(task, number).get("scm_fds", "0"))
                elif stat.S_ISCHR(status.st_mode) and status.st_rdev == PTMX:
                    known = self._tasks_by_descriptor[number, (status.st_dev, status.st_ino)]
                    self.totals.terminals += _insert(known, task, KCMP_FILE, number)
                elif not stat.S_IFMT(status.st_mode):  # only anonymous inodes have no type
                    known = self._tasks_by_descriptor[number, (status.st_dev, status.st_ino)]
                    self.totals.anonymous += _insert(known, task, KCMP_FILE, number)

    def _add_directory(self, task: int, number: int, status: os.stat_result) -> None:
        fields = _fdinfo(task, number)
        if int(fields["flags"], 8) & O_PATH:  # such a descriptor has no list of names
            return
        known = self._tasks_by_descriptor[number, (status.st_dev, status.st_ino)]
        if not _insert(known, task, KCMP_FILE, number):
            return
        self.totals.directories += 1
        names = max(0, status.st_size - PAGE)  # even an empty directory has a block on ext4
        if int(fields["pos"]):
            self.totals.listed_bytes += names
        else:
            self.totals.rewound_bytes += names


def _fdinfo(task: int, number: int) -> dict[str, str]:
    """Return the fields of a descriptor's ``fdinfo``."""
    lines = (PROC / str(task) / "fdinfo" / str(number)).read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _tables(tasks: list[int]) -> Iterator[_Table]:
    """Yield each descriptor table once, with one of its tasks."""
    known: list[int] = []
    for task in tasks:
        if _insert(known, task, KCMP_FILES, same_if_unknown=False):
            with contextlib.suppress(OSError, StopIteration):  # the task has just ended
                lines = (PROC / str(task) / "status").read_text(errors="replace").splitlines()
                yield _Table(task, int(next(line for line in lines if line.startswith("FDSize:")).split()[1]))


def _insert(known: list[int], task: int, kind: int, number: int = 0, *, same_if_unknown: bool = True) -> bool:
    """Insert ``task`` into ``known``, which is sorted by kcmp(2). Return False if it has the same file or table.

    ``same_if_unknown``: a pair that the kernel cannot compare counts as the same.
    """
    at = bisect_left(known, 0, key=lambda other: -1 if _kcmp(other, task, kind, number) == KCMP_LESS else 0)
    order = _kcmp(known[at], task, kind, number) if at < len(known) else None
    if order == 0 or (order == -1 and same_if_unknown):
        return False
    known.insert(at, task)
    return True


def _kcmp(task: int, other: int, kind: int, number: int) -> int:
    """Compare with kcmp(2): 0 same, 1 less, 2 greater, -1 unknown."""
    return -1 if KCMP is None else int(_libc.syscall(KCMP, task, other, kind, number, number))


def _sockets(tasks: list[int]) -> set[int]:
    """Return the inode numbers of all unix sockets in the network namespace of ``tasks``.

    Return none if it is this process's own namespace, which also has sockets of others.
    """
    for task in tasks:
        with contextlib.suppress(OSError):  # the task has just ended
            directory = PROC / str(task)
            if os.path.samestat(os.stat(directory / "ns/net"), os.stat(PROC / "self/ns/net")):
                return set()
            with (directory / "net/unix").open("rb") as file:
                lines = file.read(MAX_SOCKET_LIST_BYTES).splitlines()[1:]
            return {int(fields[6]) for fields in map(bytes.split, lines) if len(fields) > 6 and fields[6].isdigit()} - {
                0
            }
    return set()

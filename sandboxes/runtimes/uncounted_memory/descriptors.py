"""Read the open descriptors of a sandbox: in the tables of its tasks, and in flight between them.

Threads may have tables of their own (clone(2) without ``CLONE_FILES``), so the table of each task is read, once.
A descriptor that was sent over a unix socket (``SCM_RIGHTS``, unix(7)) and closed is in no table until it is received.
The kernel counts those that wait in a socket that a task has open. It does not count those of a socket that is itself
in flight; such a socket is in the list of its network namespace and in no table.
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

IN_ONE_MESSAGE = 253
"""SCM_MAX_FD of the kernel: a socket that is in flight may hold as many descriptors, and counts for so many."""
SOCKETS_BYTES = 64 << 20
"""Maximum that is read of the list of unix sockets of a network namespace."""

KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
KCMP_FILE, KCMP_FILES = 0, 2
BEFORE_IT = 1
O_PATH = 0o10000000

Inode = tuple[int, int]
"""Its device and its number."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class OpenDescriptors:
    """Figures of what the descriptors of one sandbox hold. ``sampled``: all figures are estimates from a random part.

    ``listed_bytes``: sizes of directories that are read, of which overlayfs keeps a list of names. ``rewound_bytes``:
    of those at their beginning. A list is kept there too if the directory was read and rewound.
    """

    inodes: set[Inode] = field(default_factory=set)
    directories: int = 0
    listed_bytes: int = 0
    rewound_bytes: int = 0
    in_flight: int = 0
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    """The descriptors of one task, and of all that share them with it. ``size``: numbers that it has room for."""

    task: int
    size: int


def read_descriptors(tasks: list[int], at_most: int) -> OpenDescriptors:
    """Read the descriptors of ``tasks``. If their tables have room for more than ``at_most``, read a part of them.

    The part is a random choice of descriptor numbers, in all tables. So an inherited descriptor, which has the same
    number in many tables, is still counted once, and a figure divided by the part is neither too high nor too low on
    average. Sockets in flight are then not searched for: a socket that was not read may be in a table.
    """
    tables = list(_tables(tasks))
    room = sum(table.size for table in tables)
    reading = _Reading()
    if room <= at_most:
        listed = _sockets(tasks)
        for table in tables:
            with contextlib.suppress(OSError):  # it ended just now
                reading.add(table.task, map(int, os.listdir(PROC / str(table.task) / "fd")))
        missing = {number for number in listed & _sockets(tasks) if number not in reading.sockets}
        reading.found.in_flight += IN_ONE_MESSAGE * len(missing)
        return reading.found
    largest = max(table.size for table in tables)
    numbers = random.sample(range(largest), max(1, largest * at_most // room))
    for table in tables:
        reading.add(table.task, (number for number in numbers if number < table.size))
    return _scaled(reading.found, largest / len(numbers))


def _scaled(part: OpenDescriptors, times: float) -> OpenDescriptors:
    return OpenDescriptors(
        part.inodes,
        directories=round(part.directories * times),
        listed_bytes=round(part.listed_bytes * times),
        rewound_bytes=round(part.rewound_bytes * times),
        in_flight=round(part.in_flight * times),
        sampled=True,
    )


class _Reading:
    """``sockets``: numbers of the inodes of all sockets that were read."""

    def __init__(self) -> None:
        self.found = OpenDescriptors()
        self.sockets: set[int] = set()
        self._holders: dict[tuple[int, Inode], list[int]] = defaultdict(list)

    def add(self, task: int, numbers: Iterable[int]) -> None:
        place = f"{PROC}/{task}/fd/"
        for number in numbers:
            with contextlib.suppress(OSError):  # there is none, or it was closed just now
                about = os.stat(f"{place}{number}")
                self.found.inodes.add((about.st_dev, about.st_ino))
                if stat.S_ISDIR(about.st_mode):
                    self._add_directory(task, number, about)
                elif stat.S_ISSOCK(about.st_mode) and about.st_ino not in self.sockets:
                    self.sockets.add(about.st_ino)
                    self.found.in_flight += int(_about(task, number).get("scm_fds", "0"))

    def _add_directory(self, task: int, number: int, about: os.stat_result) -> None:
        said = _about(task, number)
        if int(said["flags"], 8) & O_PATH:  # it holds nothing
            return
        known = self._holders[number, (about.st_dev, about.st_ino)]
        if not _insert(known, task, KCMP_FILE, number):
            return
        self.found.directories += 1
        names = max(0, about.st_size - PAGE)  # even an empty directory has a block on ext4
        if int(said["pos"]):
            self.found.listed_bytes += names
        else:
            self.found.rewound_bytes += names


def _about(task: int, number: int) -> dict[str, str]:
    """Return the fields of a descriptor in ``fdinfo``."""
    lines = (PROC / str(task) / "fdinfo" / str(number)).read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _tables(tasks: list[int]) -> Iterator[_Table]:
    """Yield each table of descriptors once, by one of the tasks that have it."""
    known: list[int] = []
    for task in tasks:
        if _insert(known, task, KCMP_FILES, same_if_unknown=False):
            with contextlib.suppress(OSError, StopIteration):  # it ended just now
                lines = (PROC / str(task) / "status").read_text(errors="replace").splitlines()
                yield _Table(task, int(next(line for line in lines if line.startswith("FDSize:")).split()[1]))


def _insert(known: list[int], task: int, kind: int, number: int = 0, *, same_if_unknown: bool = True) -> bool:
    """Insert ``task`` by the kernel's own order of files or tables; return False if one that is known has the same.

    The order is that of kcmp(2). ``same_if_unknown``: a pair that the kernel does not compare counts as the same.
    """
    at = bisect_left(known, 0, key=lambda other: -1 if _order(other, task, kind, number) == BEFORE_IT else 0)
    order = _order(known[at], task, kind, number) if at < len(known) else None
    if order == 0 or (order == -1 and same_if_unknown):
        return False
    known.insert(at, task)
    return True


def _order(task: int, other: int, kind: int, number: int) -> int:
    """Compare by the kernel's own order: 0 same, 1 less, 2 greater, -1 unknown; see kcmp(2)."""
    return -1 if KCMP is None else int(_libc.syscall(KCMP, task, other, kind, number, number))


def _sockets(tasks: list[int]) -> set[int]:
    """Return the numbers of the inodes of all unix sockets in the network namespace of ``tasks``.

    None if it is this process's own: sockets of others are there too.
    """
    for task in tasks:
        with contextlib.suppress(OSError):  # it ended just now
            place = PROC / str(task)
            if os.path.samestat(os.stat(place / "ns/net"), os.stat(PROC / "self/ns/net")):
                return set()
            with (place / "net/unix").open("rb") as file:
                lines = file.read(SOCKETS_BYTES).splitlines()[1:]
            return {int(fields[6]) for fields in map(bytes.split, lines) if len(fields) > 6 and fields[6].isdigit()} - {
                0
            }
    return set()

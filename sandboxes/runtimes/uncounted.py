"""Measure memory of the machine that a sandbox holds and that no control group counts.

| held                 | why it is not counted                    | measured by                                  |
|----------------------|------------------------------------------|----------------------------------------------|
| file locks           | Linux 5.15 took their accounting back    | ``/proc/locks``, by device or by open files  |
| open directories     | btrfs has a page for each, and overlayfs | descriptors, each once, and directory sizes  |
|                      | a list of all names in it                |                                              |
| corked UDP datagrams | they wait in pages of the socket         | ``tx_queue`` of ``/proc/PID/net/udp``        |
| multicast groups     | the network namespace holds them         | ``/proc/PID/net/igmp``                       |

``sandboxes.seccomp`` refuses what has no honest use; the rest is bounded here. All figures are lower bounds.
"""

import contextlib
import ctypes
import os
import platform
import random
import stat
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LOCK_OBJECTS = Path("/sys/kernel/slab/file_lock_cache/objects")

LOCK_BYTES = 192
DIRECTORY_BYTES = 4096
MEMBERSHIP_BYTES = 256

DESCRIPTORS_MOST = 50_000
"""Maximum number of descriptors of a sandbox that one survey reads, in some 0.1 s; of more it reads a random part."""
TABLE_BYTES = 4 << 20
"""Maximum that is read of a table of sockets."""

OWN_MOUNTS = frozenset(("/", "/dev", "/dev/shm", "/dev/mqueue"))
"""File systems that no two sandboxes share."""

KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine())
KCMP_FILE = 0
BEFORE_IT = 1
O_PATH = 0o10000000

Inode = tuple[int, int]
"""Its device and its number."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Held:
    """Lower bounds of the uncounted memory of one sandbox."""

    locks: int = 0
    directories: int = 0
    listed_bytes: int = 0
    corked_bytes: int = 0
    memberships: int = 0

    @property
    def bytes(self) -> int:
        return (
            self.locks * LOCK_BYTES
            + self.directories * DIRECTORY_BYTES
            + self.listed_bytes
            + self.corked_bytes
            + self.memberships * MEMBERSHIP_BYTES
        )

    def __str__(self) -> str:
        parts = (
            (self.locks * LOCK_BYTES, f"{self.locks} file locks"),
            (self.directories * DIRECTORY_BYTES + self.listed_bytes, f"{self.directories} open directories"),
            (self.corked_bytes, f"{self.corked_bytes >> 10} KiB in corked UDP sockets"),
            (self.memberships * MEMBERSHIP_BYTES, f"{self.memberships} multicast groups"),
        )
        return ", ".join(text for part, text in parts if part >= self.bytes // 16)


def kernel_bytes(meminfo: str) -> int:
    """Memory that neither files nor programs have, counted or not. ``meminfo`` is the text of ``/proc/meminfo``."""
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    others = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable")
    return (kib["MemTotal"] - sum(kib.get(name, 0) for name in others)) << 10


def locks_on_machine() -> int:
    """How many file locks the kernel holds for all; 0 if it does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(LOCK_OBJECTS.read_text().split()[0])
    return 0


def survey(groups: Mapping[str, Path], lock_table_bytes: int) -> dict[str, Held]:
    """Measure what each sandbox holds. ``groups`` has the control group of each. Blocks.

    ``lock_table_bytes``: how much of ``/proc/locks`` is read, newest locks first; 0 for none.
    """
    processes = {name: list(_processes(group)) for name, group in groups.items()}
    found = {name: Held() for name, pids in processes.items() if pids}
    opened: dict[str, set[Inode]] = {}
    for name, held in found.items():
        opened[name] = _add_descriptors(held, processes[name])
        _add_network(held, processes[name])
    if lock_table_bytes:
        _add_locks(found, processes, opened, _locks(lock_table_bytes))
    return found


def _processes(group: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it is gone
        yield from map(int, (group / "cgroup.procs").read_text().split())


def _add_descriptors(held: Held, pids: list[int]) -> set[Inode]:
    """Add the open directories; return which inodes are open."""
    opened: set[Inode] = set()
    holders: dict[tuple[int, Inode], list[int]] = defaultdict(list)
    left = DESCRIPTORS_MOST
    for pid in random.sample(pids, len(pids)):
        with contextlib.suppress(OSError):  # it ended just now
            table = _table(pid)
            for number in os.listdir(table):
                if (left := left - 1) < 0:
                    return opened
                with contextlib.suppress(OSError):
                    _add_descriptor(held, holders, opened, table, int(number))
    return opened


def _table(pid: int) -> Path:
    """Return the directory of a process's descriptors. If its first thread has ended, another thread has the table."""
    table = PROC / str(pid) / "fd"
    if next(table.iterdir(), None) is not None:
        return table
    threads = (thread / "fd" for thread in (PROC / str(pid) / "task").iterdir())
    return next((other for other in threads if next(other.iterdir(), None) is not None), table)


def _add_descriptor(
    held: Held, holders: dict[tuple[int, Inode], list[int]], opened: set[Inode], table: Path, number: int
) -> None:
    """``holders``: by number and inode, a process for each file that was counted, in the order of kcmp(2)."""
    about = os.stat(table / str(number))
    inode = about.st_dev, about.st_ino
    opened.add(inode)
    if not stat.S_ISDIR(about.st_mode):
        return
    flags, position = _about(table, number)
    if flags & O_PATH:  # it holds nothing
        return
    pid = int(table.parent.name)
    known = holders[number, inode]
    at = bisect_left(known, 0, key=lambda other: -1 if _order(other, pid, number) == BEFORE_IT else 0)
    if at < len(known) and _order(known[at], pid, number) == 0:
        return
    known.insert(at, pid)
    held.directories += 1
    if position:  # then overlayfs keeps a list of its names; even an empty directory has a block on ext4
        held.listed_bytes += max(0, about.st_size - DIRECTORY_BYTES)


def _about(table: Path, number: int) -> tuple[int, int]:
    """Return the flags and the position of a descriptor."""
    fields = (table.parent / "fdinfo" / str(number)).read_text(errors="replace").split()
    return int(fields[fields.index("flags:") + 1], 8), int(fields[fields.index("pos:") + 1])


def _order(pid: int, other: int, number: int) -> int:
    """Compare the files of two processes by the kernel's own order: 0 same, 1 less, 2 greater; see kcmp(2).

    A pair that the kernel does not compare counts as the same file.
    """
    found = 0 if KCMP is None else int(_libc.syscall(KCMP, pid, other, KCMP_FILE, number, number))
    return max(0, found)


def _add_network(held: Held, pids: list[int]) -> None:
    for pid in pids[:1]:
        for line in _lines(pid, "net/udp") + _lines(pid, "net/udp6"):
            fields = line.split()
            if len(fields) > 4 and ":" in fields[4]:
                held.corked_bytes += int(fields[4].partition(":")[0], 16)
        held.memberships += sum(line.startswith("\t") for line in _lines(pid, "net/igmp"))


def _lines(pid: int, table: str) -> list[str]:
    try:
        with (PROC / str(pid) / table).open() as file:
            return file.read(TABLE_BYTES).splitlines()[1:]
    except OSError:
        return []


def _locks(at_most: int) -> Counter[Inode]:
    """How many locks each inode has, as far as the table is read."""
    found: Counter[Inode] = Counter()
    text = bytearray()
    with contextlib.suppress(OSError):
        fd = os.open(PROC / "locks", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(text) < at_most and (more := os.read(fd, 1 << 16)):
                text += more
        finally:
            os.close(fd)
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[-3].count(b":") == 2:
            major, minor, number = fields[-3].split(b":")
            found[os.makedev(int(major, 16), int(minor, 16)), int(number)] += 1
    return found


def _add_locks(
    found: Mapping[str, Held],
    processes: Mapping[str, list[int]],
    opened: Mapping[str, set[Inode]],
    locks: Counter[Inode],
) -> None:
    """Add each lock to the sandbox whose file system has the inode, or else to the only sandbox that has it open.

    The process in the table says nothing: it may have ended, and its number may be another sandbox's by now.
    """
    owners = {device: name for name in found for device in _own_devices(processes[name])}
    for inode, count in locks.items():
        name = owners.get(inode[0])
        if name is None:
            holding = [other for other, inodes in opened.items() if inode in inodes]
            name = holding[0] if len(holding) == 1 else None
        if name is not None:
            found[name].locks += count


def _own_devices(pids: list[int]) -> set[int]:
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = [line.split() for line in (PROC / str(pid) / "mountinfo").read_text().splitlines()]
            if lines:
                return {
                    os.makedev(*map(int, fields[2].split(":")))
                    for fields in lines
                    if fields[4] in OWN_MOUNTS and fields[fields.index("-") + 1] in ("overlay", "tmpfs", "mqueue")
                }
    return set()

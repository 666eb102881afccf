"""Measure memory of the machine that a sandbox holds and that no cgroup counts.

| held                 | why it is not counted                    | measured by                                  |
|----------------------|------------------------------------------|----------------------------------------------|
| file locks           | Linux 5.15 removed their accounting      | ``/proc/locks``, by device or by open files  |
| open directories     | btrfs has a page for each, and overlayfs | descriptors, each once, and directory sizes  |
|                      | a list of all names in it                | (module ``descriptors``)                     |
| descriptors in       | each may be an open directory that       | ``scm_fds`` of each unix socket, and sockets |
| flight (unix(7))     | cannot be inspected                      | that are themselves in flight                |
| corked UDP datagrams | they wait in pages of the socket         | ``tx_queue`` of ``/proc/PID/net/udp``        |
| multicast groups     | the network namespace holds them         | ``/proc/PID/net/igmp``                       |
| timers and epoll     | each has an object of its own            | descriptors of anonymous inodes              |
| TCP connections that | packets make them and fill them, until   | ``/proc/PID/net/sockstat``, and ``rx_queue`` |
| nobody has accepted  | accept(2) gives them to a process        | of ``/proc/PID/net/tcp`` without an inode    |
| pseudo-terminals     | buffers of both ends                     | descriptors of their masters                 |
| UDP sockets          | each may have a table of the sockets     | ``/proc/PID/net/sockstat``                   |
|                      | that share its port (SO_REUSEPORT)       |                                              |

``sandboxes.runtimes.seccomp`` refuses calls without a legitimate use; the rest is bounded here. All figures are lower
bounds, except those of directories at position 0, of descriptors in flight, of a sampled sandbox, of TCP connections,
of terminals, and of UDP sockets.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.runtimes.uncounted_memory.descriptors import PROC, Inode, read_descriptors

LOCK_OBJECTS = Path("/sys/kernel/slab/file_lock_cache/objects")

LOCK_BYTES = 192
DIRECTORY_BYTES = 4096
MEMBERSHIP_BYTES = 256
ANONYMOUS_BYTES = 256
"""The object behind a timer or an epoll instance: kmalloc-256 in ``/proc/slabinfo``."""

IN_FLIGHT_BYTES = 1 << 20
"""A descriptor in flight may be an open directory, which holds this much if it has 2,000 long names."""

CONNECTION_BYTES = 2560
TIME_WAIT_BYTES = 256
TERMINAL_BYTES = 64 << 10
"""Assumed for a pseudo-terminal with full buffers."""
UDP_SOCKET_BYTES = 2 << 10
"""Assumed for a UDP socket: the table of a port that is shared is allocated for 128 sockets, also if there is one."""
UNACCEPTED_BYTES = 64 << 10
"""Assumed for a connection that has data and is not accepted: small packets take many times their data."""

MAX_TABLE_BYTES = 4 << 20
"""Maximum bytes that are read from a table of sockets."""

CONNECTED = frozenset(("01", "08"))
"""TCP_ESTABLISHED and TCP_CLOSE_WAIT in ``/proc/PID/net/tcp``."""

OWN_MOUNTS = frozenset(("/", "/dev", "/dev/shm", "/dev/mqueue"))
"""Mount points whose file systems no two sandboxes share."""


@dataclass(slots=True)
class UncountedMemory:
    """Bounds of the uncounted memory of one sandbox. ``sampled``: the figures of descriptors are estimates."""

    locks: int = 0
    directories: int = 0
    listed_bytes: int = 0
    rewound_bytes: int = 0
    corked_bytes: int = 0
    memberships: int = 0
    in_flight: int = 0
    anonymous: int = 0
    connections_bytes: int = 0
    unaccepted: int = 0
    udp_sockets: int = 0
    terminals: int = 0
    sampled: bool = False

    @property
    def certain(self) -> "UncountedMemory":
        """Return the measured figures, without estimates and assumptions."""
        if not self.sampled:
            return replace(self, rewound_bytes=0, in_flight=0, unaccepted=0, udp_sockets=0, terminals=0)
        guessed = (
            *("directories", "listed_bytes", "rewound_bytes", "in_flight", "anonymous"),
            *("unaccepted", "udp_sockets", "terminals"),
        )
        return replace(self, **dict.fromkeys(guessed, 0), sampled=False)

    @property
    def bytes(self) -> int:
        return (
            self.locks * LOCK_BYTES
            + self.directories * DIRECTORY_BYTES
            + self.listed_bytes
            + self.rewound_bytes
            + self.corked_bytes
            + self.memberships * MEMBERSHIP_BYTES
            + self.in_flight * IN_FLIGHT_BYTES
            + self.anonymous * ANONYMOUS_BYTES
            + self.connections_bytes
            + self.unaccepted * UNACCEPTED_BYTES
            + self.udp_sockets * UDP_SOCKET_BYTES
            + self.terminals * TERMINAL_BYTES
        )

    def __str__(self) -> str:
        parts = (
            (self.locks * LOCK_BYTES, f"{self.locks} file locks"),
            (
                self.directories * DIRECTORY_BYTES + self.listed_bytes + self.rewound_bytes,
                f"{self.directories} open directories",
            ),
            (self.corked_bytes, f"{self.corked_bytes >> 10} KiB in corked UDP sockets"),
            (self.memberships * MEMBERSHIP_BYTES, f"{self.memberships} multicast groups"),
            (self.in_flight * IN_FLIGHT_BYTES, f"{self.in_flight} descriptors sent over unix sockets and not received"),
            (self.anonymous * ANONYMOUS_BYTES, f"{self.anonymous} timers and epoll instances"),
            (
                self.connections_bytes + self.unaccepted * UNACCEPTED_BYTES,
                f"{self.connections_bytes >> 10} KiB in TCP connections, {self.unaccepted} with data and not accepted",
            ),
            (self.udp_sockets * UDP_SOCKET_BYTES, f"{self.udp_sockets} UDP sockets"),
            (self.terminals * TERMINAL_BYTES, f"{self.terminals} pseudo-terminals"),
        )
        return ", ".join(text for part, text in parts if part >= self.bytes // 16)


def kernel_bytes(meminfo: str) -> int:
    """Return the kernel's own memory, counted or not. ``meminfo``: the text of ``/proc/meminfo``."""
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    others = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable")
    return (kib["MemTotal"] - sum(kib.get(name, 0) for name in others)) << 10


def locks_on_machine() -> int:
    """Return the number of file locks on the machine, 0 if the kernel does not report it."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(LOCK_OBJECTS.read_text().split()[0])
    return 0


def survey(groups: Mapping[str, Path], lock_table_bytes: int, descriptors: int = 50_000) -> dict[str, UncountedMemory]:
    """Measure each sandbox. ``groups``: sandbox → its cgroup. Blocks.

    ``lock_table_bytes``: bytes of ``/proc/locks`` that are read, newest locks first; 0 for none. ``descriptors``:
    maximum number of descriptors of a sandbox that are read (50,000 take 0.3 s); more are sampled.
    """
    tasks = {name: _tasks(group) for name, group in groups.items()}
    found = {name: UncountedMemory() for name, numbers in tasks.items() if numbers}
    opened: dict[str, set[Inode]] = {}
    for name, held in found.items():
        read = read_descriptors(tasks[name], descriptors)
        held.directories, held.in_flight, held.sampled = read.directories, read.in_flight, read.sampled
        held.listed_bytes, held.rewound_bytes, held.anonymous = read.listed_bytes, read.rewound_bytes, read.anonymous
        held.terminals = read.terminals
        opened[name] = read.inodes
        _add_network(held, tasks[name])
    if lock_table_bytes:
        _add_locks(found, tasks, opened, _locks(lock_table_bytes))
    return found


def _tasks(group: Path) -> list[int]:
    """Return the threads of a cgroup, version 2 or 1."""
    for name in ("cgroup.threads", "tasks"):
        with contextlib.suppress(OSError):  # no such file, or the cgroup was removed
            return [int(task) for task in (group / name).read_text().split()]
    return []


def _add_network(held: UncountedMemory, tasks: list[int]) -> None:
    """Add all UDP sockets, multicast groups and TCP connections, and the data of connections in no process's hands.

    A table of sockets is read only if ``sockstat`` has counted a socket of its kind: the kernel searches the machine's
    whole hash table for each reader, which takes 1 ms.
    """
    used: Counter[str] = Counter()
    for line in _table(tasks, "net/sockstat") + _table(tasks, "net/sockstat6"):
        name, *figures = line.split()
        counts = dict(zip(figures[::2], map(int, figures[1::2]), strict=False))
        used[name] = counts.get("inuse", 0)
        if name in ("UDP:", "UDP6:"):
            held.udp_sockets += counts["inuse"]
        elif name in ("TCP:", "TCP6:"):
            held.connections_bytes += counts["inuse"] * CONNECTION_BYTES + counts.get("tw", 0) * TIME_WAIT_BYTES
    udp = (table for kind, table in (("UDP:", "net/udp"), ("UDP6:", "net/udp6")) if used[kind])
    for fields in (line.split() for table in udp for line in _lines(tasks, table)):
        if len(fields) > 4 and ":" in fields[4]:
            held.corked_bytes += int(fields[4].partition(":")[0], 16)
    held.memberships += sum(line.startswith("\t") for line in _lines(tasks, "net/igmp"))
    tcp = (table for kind, table in (("TCP:", "net/tcp"), ("TCP6:", "net/tcp6")) if used[kind])
    for fields in (line.split() for table in tcp for line in _lines(tasks, table)):
        if len(fields) > 9 and fields[3] in CONNECTED and fields[9] == "0":
            received = int(fields[4].partition(":")[2], 16)
            held.connections_bytes += received
            held.unaccepted += received > 0


def _lines(tasks: list[int], table: str) -> list[str]:
    """Return the lines of a table of the sandbox's network namespace, without its head."""
    return _table(tasks, table)[1:]


def _table(tasks: list[int], table: str) -> list[str]:
    """Return all lines of a table of the sandbox's network namespace, read through its first living task."""
    for task in tasks:
        with contextlib.suppress(OSError), (PROC / str(task) / table).open() as file:
            return file.read(MAX_TABLE_BYTES).splitlines()
    return []


def _locks(at_most: int) -> Counter[Inode]:
    """Count the locks of each inode in the first ``at_most`` bytes of the table."""
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
    found: Mapping[str, UncountedMemory],
    tasks: Mapping[str, list[int]],
    opened: Mapping[str, set[Inode]],
    locks: Counter[Inode],
) -> None:
    """Add each lock to the sandbox whose file system has the inode, else to the only sandbox that has it open.

    The process id in the table does not decide: that process may have ended, and another may have its id.
    """
    owners = {device: name for name in found for device in _own_devices(tasks[name])}
    for inode, count in locks.items():
        name = owners.get(inode[0])
        if name is None:
            holding = [other for other, inodes in opened.items() if inode in inodes]
            name = holding[0] if len(holding) == 1 else None
        if name is not None:
            found[name].locks += count


def _own_devices(tasks: list[int]) -> set[int]:
    for task in tasks:
        with contextlib.suppress(OSError):
            lines = [line.split() for line in (PROC / str(task) / "mountinfo").read_text().splitlines()]
            if lines:
                return {
                    os.makedev(*map(int, fields[2].split(":")))
                    for fields in lines
                    if fields[4] in OWN_MOUNTS and fields[fields.index("-") + 1] in ("overlay", "tmpfs", "mqueue")
                }
    return set()

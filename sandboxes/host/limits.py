"""Limits of the host that bite with hundreds of sandboxes: how many sandboxes each allows, and what would raise it.

Pure: readings in, verdicts out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sandboxes.spec import SandboxLimits

PIDS, OPEN_FILES = SandboxLimits().pids, SandboxLimits().open_files
WATCHERS_INSIDE = 2
"""inotify instances of what runs inside: a test runner that waits for changes, and a ``tail -f``."""
WATCHES_INSIDE = 512
"""Directories that one of them watches, in a repository of some size."""
AGENT_FILES = 256
"""Open files of a node agent without a sandbox."""
FILES_IN_FLIGHT = 2
"""Of an episode in its agent: the connection to its policy, and a file that is read or written."""

LEFT_OUT = {
    "net.netfilter.nf_conntrack_max": "counted for each network namespace, and a sandbox's has no rules",
    "net.core.somaxconn": "counted for each network namespace, and nothing of ours listens in a sandbox's",
    "vm.max_map_count": "counted for each process",
    "RLIMIT_MEMLOCK": "counted for each process; BPF programs have not counted since Linux 5.11",
    "RLIMIT_NPROC": "not enforced on a user namespace that root made, tried on Linux 6.18",
}
"""Looked at, with the reason why they bound no number of sandboxes."""

NAMESPACES = ("net", "mnt", "pid", "ipc", "uts", "cgroup")
PID_MAX_MOST = 4_194_304
"""PID_MAX_LIMIT of the kernel, include/linux/threads.h."""
LOOPBACK_NEIGHBOUR_FREE = (6, 10)
"""Since this kernel entries of a loopback device are not counted as neighbours (``__neigh_create``)."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an idle sandbox with one shell takes of its host.

    Measured as the difference that 20 sandboxes made (100 for memory), with Docker 20.10 and crun 1.8 on Linux 6.18.
    ``tasks``: processes and threads, those of a shim included. ``own_files``: in the process that made it;
    ``daemon_files``: in dockerd, and again in containerd. ``mounts``: in the mount namespace of the host.
    ``key_bytes``: of a session keyring of its own, where it has one. ``inotify``: instances of a shim, where control
    groups are of version 2. ``own_user``: what the kernel counts by user, it counts for each sandbox alone.
    """

    tasks: int
    files: int
    own_files: int
    memory_mib: int
    key_bytes: int = 0
    daemon_files: int = 0
    mounts: int = 0
    inotify: int = 0
    own_user: bool = False


DOCKER = Footprint(tasks=13, files=52, own_files=1, key_bytes=70, memory_mib=5, daemon_files=4, mounts=2, inotify=1)


def oci_footprint(*, mapped: bool) -> Footprint:
    """``mapped``: each sandbox has a user namespace."""
    return Footprint(tasks=2, files=28, own_files=4, memory_mib=2, own_user=mapped)


@dataclass(frozen=True, slots=True)
class HostReadings:
    """What was read; a limit that is not in ``sysctls``, or None, is not there or nobody may read it.

    ``sysctls`` by dotted name. ``keys``: keys and bytes that root has in use. ``nofile``: RLIMIT_NOFILE of this
    process, and of daemons by name. ``memory_mib``: what is free on the machine, or the less that is free in the
    control groups that this process lives under; ``group_tasks``: how many these may have, where that is limited.
    """

    kernel: tuple[int, int] = (0, 0)
    cgroup_version: int = 2
    sysctls: Mapping[str, int] = field(default_factory=dict)
    tasks: int = 0
    open_files: int = 0
    mounts: int = 0
    neighbours_v4: int = 0
    neighbours_v6: int = 0
    keys: tuple[int, int] = (0, 0)
    nofile: int | None = None
    daemon_nofile: Mapping[str, int] = field(default_factory=dict)
    memory_mib: int | None = None
    group_tasks: int | None = None
    group_tasks_used: int = 0


_UNITS = {
    "kernel.pid_max": "tasks",
    "kernel.threads-max": "tasks",
    "pids.max": "tasks",
    "user.max_": "namespaces",
    "fs.inotify.max_user_instances": "instances",
    "fs.inotify.max_user_watches": "watches",
    "kernel.keys.root_maxkeys": "keys",
    "kernel.keys.root_maxbytes": "bytes",
    "fs.file-max": "files",
    "fs.nr_open": "files",
    "open files of ": "files",
    "fs.mount-max": "mounts",
    "net.": "entries",
    "memory": "MiB",
}
"""What limits count, by how their names begin."""


@dataclass(frozen=True, slots=True)
class SandboxAllowance:
    """One limit: ``allows`` sandboxes, at ``each`` of it; ``remedy`` is empty where that is enough."""

    name: str
    value: int
    each: int
    allows: int
    remedy: str
    why: str

    @property
    def unit(self) -> str:
        """Return what the limit counts."""
        return next((unit for name, unit in _UNITS.items() if self.name.startswith(name)), "")

    @property
    def verdict(self) -> str:
        return "raise" if self.remedy else "ok"


@dataclass(frozen=True, slots=True)
class LimitRule:
    """``value`` of a limit, less what is ``used`` of it, holds so many sandboxes at ``each``.

    ``remedy``: how to set it, with ``{}`` for the figure that is wanted, rounded up to a power of two and at most
    ``most``.
    """

    name: str
    value: int
    each: int
    why: str
    remedy: str
    used: int = 0
    most: int | None = None

    def judge(self, sandboxes: int) -> SandboxAllowance:
        allows = max(self.value - self.used, 0) // self.each
        remedy = ""
        if allows < sandboxes:
            wanted = 1 << (self.used + self.each * sandboxes - 1).bit_length()
            remedy = self.remedy.format(min(wanted, self.most) if self.most else wanted)
            if self.most is not None and wanted > self.most:
                remedy += f", its most, for {(self.most - self.used) // self.each}"
        return SandboxAllowance(self.name, self.value, self.each, allows, remedy, self.why)


def judge(host: HostReadings, footprint: Footprint, sandboxes: int) -> tuple[SandboxAllowance, ...]:
    """Every limit that could be read, for so many sandboxes at once; the scarcest first."""
    found = [rule.judge(sandboxes) for rule in _rules(host, footprint)]
    return tuple(sorted(found, key=lambda allowance: (allowance.allows, allowance.name)))


def _rules(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    yield from _of_tasks(host, footprint)
    yield from _of_namespaces(host, footprint)
    yield from _of_watches(host, footprint)
    yield from _of_keys(host, footprint)
    yield from _of_files(host, footprint)
    yield from _of_neighbours(host)
    yield from _of_processes(host, footprint)
    yield from _of_groups(host, footprint)


def _sysctl(
    host: HostReadings, name: str, each: int, why: str, *, used: int = 0, most: int | None = None
) -> Iterator[LimitRule]:
    if name in host.sysctls:
        yield LimitRule(name, host.sysctls[name], each, why, f"sysctl -w {name}={{}}", used, most)


def _of_tasks(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """proc_sys_kernel(5): both count threads, of the whole machine."""
    each = footprint.tasks + PIDS
    why = f"processes and threads: {footprint.tasks} of a sandbox that idles, {PIDS} more of one at its limit"
    yield from _sysctl(host, "kernel.pid_max", each, why, used=host.tasks, most=PID_MAX_MOST)
    yield from _sysctl(host, "kernel.threads-max", each, why, used=host.tasks)


def _of_namespaces(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """namespaces(7): counted for the user who makes them, else root for all sandboxes."""
    if not footprint.own_user:
        for kind in NAMESPACES:
            yield from _sysctl(host, f"user.max_{kind}_namespaces", 1, "a sandbox has one of its own")


def _of_watches(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """inotify(7). Counted for the real user, and for whoever made its user namespace as well, else root for all."""
    if footprint.own_user:
        return
    instances = WATCHERS_INSIDE + (footprint.inotify if host.cgroup_version == 2 else 0)
    why = "all sandboxes share what root may have; one that waits for changes of files takes"
    yield from _sysctl(host, "fs.inotify.max_user_instances", instances, f"{why} {instances}")
    yield from _sysctl(host, "fs.inotify.max_user_watches", WATCHES_INSIDE, f"{why} {WATCHES_INSIDE}")


def _of_keys(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """keyrings(7): runc makes a session keyring for each container, whose name is most of its size."""
    if each := footprint.key_bytes:
        keys, octets = host.keys
        yield from _sysctl(host, "kernel.keys.root_maxkeys", 1, "session keyrings, all root's", used=keys)
        yield from _sysctl(host, "kernel.keys.root_maxbytes", each, "names of keyrings, all root's", used=octets)


def _of_files(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """proc_sys_fs(5). The table is one for all; where it is full, only root opens files. Tried with a sandbox of the
    default limits: 2,466,170 were gone with 500 MiB of its memory."""
    each = footprint.files + PIDS * OPEN_FILES
    why = f"open files: {footprint.files} of a sandbox that idles, {OPEN_FILES} more of each of {PIDS} processes"
    yield from _sysctl(host, "fs.file-max", each, why, used=host.open_files)
    if each := footprint.mounts:
        yield from _sysctl(
            host, "fs.mount-max", each, "the daemon mounts its file system and its toolbox", used=host.mounts
        )
    each = footprint.own_files + FILES_IN_FLIGHT
    yield from _sysctl(host, "fs.nr_open", each, "the most that RLIMIT_NOFILE can be", used=AGENT_FILES)


def _of_neighbours(host: HostReadings) -> Iterator[LimitRule]:
    """arp(7): one table for all network namespaces, in which each sandbox that speaks to itself has an entry."""
    if host.kernel >= LOOPBACK_NEIGHBOUR_FREE:
        return
    for family, used in (("ipv4", host.neighbours_v4), ("ipv6", host.neighbours_v6)):
        name = f"net.{family}.neigh.default.gc_thresh3"
        yield from _sysctl(host, name, 1, "an entry for a sandbox's loopback, before Linux 6.10", used=used)


def _of_processes(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """getrlimit(2)."""
    if host.nofile is not None:
        each = footprint.own_files + FILES_IN_FLIGHT
        why = "open files of the node agent, whose limit is that of whoever starts the farm"
        yield LimitRule("open files of the farm", host.nofile, each, why, "ulimit -n {}", AGENT_FILES)
    if footprint.daemon_files:
        for daemon, value in sorted(host.daemon_nofile.items()):
            why = f"pipes and sockets that {daemon} holds for a container"
            remedy = f"LimitNOFILE={{0}} in the unit of {daemon}, or ulimit -n {{0}} where it is started"
            yield LimitRule(f"open files of {daemon}", value, footprint.daemon_files, why, remedy, AGENT_FILES)


def _of_groups(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """cgroups(7). Where the farm is in a container, its sandboxes are as well."""
    if host.group_tasks is not None:
        why = "processes and threads in the farm's own control group, if its sandboxes lie below"
        remedy = "raise pids.max of the farm's control group (TasksMax= of its unit) to {}"
        yield LimitRule("pids.max", host.group_tasks, footprint.tasks + PIDS, why, remedy, host.group_tasks_used)
    if host.memory_mib is not None:
        why = "free MiB of memory, for sandboxes that idle; work takes more"
        yield LimitRule("memory", host.memory_mib, footprint.memory_mib, why, "have {} MiB free")

"""Compute how many sandboxes each limit of the host allows, and how to raise it.

Pure functions of ``HostReadings``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sandboxes.spec import SandboxLimits

PIDS, OPEN_FILES = SandboxLimits().pids, SandboxLimits().open_files
WATCHERS_INSIDE = 2
"""inotify instances used inside a sandbox: by a test runner that watches files, and a ``tail -f``."""
WATCHES_INSIDE = 512
"""Directories that one inotify instance watches in a repository of moderate size."""
AGENT_FILES = 256
"""Open files of a node agent without a sandbox."""
FILES_IN_FLIGHT = 2
"""Open files of one episode in its agent: the connection to the policy, and a file that is read or written."""

UNLIMITED_SYSCTLS = {
    "net.netfilter.nf_conntrack_max": "counted for each network namespace, and a sandbox's has no rules",
    "net.core.somaxconn": "counted for each network namespace, and the farm listens on nothing in a sandbox's",
    "vm.max_map_count": "counted for each process",
    "RLIMIT_MEMLOCK": "counted for each process; BPF programs have not counted since Linux 5.11",
    "RLIMIT_NPROC": "not enforced on a user namespace that root made, tried on Linux 6.18",
}
"""Limits that do not bound the number of sandboxes, with the reason."""

NAMESPACES = ("net", "mnt", "pid", "ipc", "uts", "cgroup")
PID_MAX_LIMIT = 4_194_304
"""PID_MAX_LIMIT of the kernel, include/linux/threads.h."""
LOOPBACK_NOT_COUNTED_SINCE = (6, 10)
"""Since Linux 6.10 entries of loopback devices do not count as neighbours (``__neigh_create``)."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Host resources of one idle sandbox with one shell.

    Measured as the difference that 20 sandboxes made (100 for memory), with Docker 20.10 and crun 1.8 on Linux 6.18.
    ``tasks``: processes and threads, including a shim's. ``own_files``: open files of the process that created it;
    ``daemon_files``: of dockerd, and again of containerd. ``mounts``: in the host's mount namespace. ``key_bytes``:
    of its session keyring, if it has one. ``inotify``: instances of a shim with cgroup version 2. ``own_user``: the
    kernel's per-user limits count for each sandbox separately.
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
    """Return the footprint of an ``oci`` sandbox. ``mapped``: each sandbox has a user namespace."""
    return Footprint(tasks=2, files=28, own_files=4, memory_mib=2, own_user=mapped)


@dataclass(frozen=True, slots=True)
class HostReadings:
    """Values that were read from the host. A limit that does not exist or cannot be read is missing, or None.

    ``sysctls``: by dotted name. ``keys``: number and bytes of root's keys. ``nofile``: RLIMIT_NOFILE of this process;
    ``daemon_nofile``: of daemons by name. ``memory_mib``: free memory of the machine, or of the cgroups of this process
    if less. ``group_tasks``: task limit of these cgroups, if there is one.
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
"""Prefix of a limit's name → the unit of its value."""


@dataclass(frozen=True, slots=True)
class SandboxAllowance:
    """The number of sandboxes that one limit allows. ``remedy``: how to raise it; empty if it is high enough."""

    name: str
    value: int
    each: int
    allows: int
    remedy: str
    why: str

    @property
    def unit(self) -> str:
        """Return the unit of the limit's value."""
        return next((unit for name, unit in _UNITS.items() if self.name.startswith(name)), "")

    @property
    def verdict(self) -> str:
        return "raise" if self.remedy else "ok"


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One limit of the host. ``value`` - ``used`` is divided among sandboxes, ``each`` of it for one.

    ``remedy``: how to set the limit, with ``{}`` for the required value, rounded up to a power of two and at most
    ``maximum``.
    """

    name: str
    value: int
    each: int
    why: str
    remedy: str
    used: int = 0
    maximum: int | None = None

    def judge(self, sandboxes: int) -> SandboxAllowance:
        allows = max(self.value - self.used, 0) // self.each
        remedy = ""
        if allows < sandboxes:
            wanted = 1 << (self.used + self.each * sandboxes - 1).bit_length()
            remedy = self.remedy.format(min(wanted, self.maximum) if self.maximum else wanted)
            if self.maximum is not None and wanted > self.maximum:
                remedy += f", its maximum, for {(self.maximum - self.used) // self.each}"
        return SandboxAllowance(self.name, self.value, self.each, allows, remedy, self.why)


def judge(host: HostReadings, footprint: Footprint, sandboxes: int) -> tuple[SandboxAllowance, ...]:
    """Apply every limit that could be read to ``sandboxes`` concurrent sandboxes. Return the scarcest first."""
    found = [rule.judge(sandboxes) for rule in _rules(host, footprint)]
    return tuple(sorted(found, key=lambda allowance: (allowance.allows, allowance.name)))


def _rules(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    yield from _task_limits(host, footprint)
    yield from _namespace_limits(host, footprint)
    yield from _inotify_limits(host, footprint)
    yield from _keyring_limits(host, footprint)
    yield from _file_limits(host, footprint)
    yield from _neighbour_limits(host)
    yield from _process_limits(host, footprint)
    yield from _cgroup_limits(host, footprint)


def _sysctl(
    host: HostReadings, name: str, each: int, why: str, *, used: int = 0, maximum: int | None = None
) -> Iterator[LimitRule]:
    if name in host.sysctls:
        yield LimitRule(name, host.sysctls[name], each, why, f"sysctl -w {name}={{}}", used, maximum)


def _task_limits(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """Yield the limits of proc_sys_kernel(5). Both count threads of the whole machine."""
    each = footprint.tasks + PIDS
    why = f"processes and threads: {footprint.tasks} of an idle sandbox, {PIDS} more at its own limit"
    yield from _sysctl(host, "kernel.pid_max", each, why, used=host.tasks, maximum=PID_MAX_LIMIT)
    yield from _sysctl(host, "kernel.threads-max", each, why, used=host.tasks)


def _namespace_limits(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """Yield the limits of namespaces(7), which count for the user that creates them: root, unless users are mapped."""
    if not footprint.own_user:
        for kind in NAMESPACES:
            yield from _sysctl(host, f"user.max_{kind}_namespaces", 1, "a sandbox has one of its own")


def _inotify_limits(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """Yield the limits of inotify(7), which count for the real user and the creator of its user namespace."""
    if footprint.own_user:
        return
    instances = WATCHERS_INSIDE + (footprint.inotify if host.cgroup_version == 2 else 0)
    why = "all sandboxes share root's limit; one that watches files takes"
    yield from _sysctl(host, "fs.inotify.max_user_instances", instances, f"{why} {instances}")
    yield from _sysctl(host, "fs.inotify.max_user_watches", WATCHES_INSIDE, f"{why} {WATCHES_INSIDE}")


def _keyring_limits(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """Yield the limits of keyrings(7): runc makes a session keyring for each container, mostly its name in bytes."""
    if each := footprint.key_bytes:
        keys, octets = host.keys
        yield from _sysctl(host, "kernel.keys.root_maxkeys", 1, "session keyrings, all of root", used=keys)
        yield from _sysctl(host, "kernel.keys.root_maxbytes", each, "names of keyrings, all of root", used=octets)


def _file_limits(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """Yield the limits of proc_sys_fs(5). The file table is global; when it is full only root can open files.

    A sandbox of the default limits was able to use 2,466,170 entries with 500 MiB of its memory.
    """
    each = footprint.files + PIDS * OPEN_FILES
    why = f"open files: {footprint.files} of an idle sandbox, {OPEN_FILES} more of each of {PIDS} processes"
    yield from _sysctl(host, "fs.file-max", each, why, used=host.open_files)
    if each := footprint.mounts:
        yield from _sysctl(
            host, "fs.mount-max", each, "the daemon mounts its file system and its toolbox", used=host.mounts
        )
    each = footprint.own_files + FILES_IN_FLIGHT
    yield from _sysctl(host, "fs.nr_open", each, "upper bound of RLIMIT_NOFILE", used=AGENT_FILES)


def _neighbour_limits(host: HostReadings) -> Iterator[LimitRule]:
    """Yield the limits of arp(7): one table for all network namespaces, with an entry for each used loopback."""
    if host.kernel >= LOOPBACK_NOT_COUNTED_SINCE:
        return
    for family, used in (("ipv4", host.neighbours_v4), ("ipv6", host.neighbours_v6)):
        name = f"net.{family}.neigh.default.gc_thresh3"
        yield from _sysctl(host, name, 1, "an entry for a sandbox's loopback, before Linux 6.10", used=used)


def _process_limits(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """Yield the limits of getrlimit(2): of this process and the daemons."""
    if host.nofile is not None:
        each = footprint.own_files + FILES_IN_FLIGHT
        why = "open files of the node agent, inherited from the shell that starts the farm"
        yield LimitRule("open files of the farm", host.nofile, each, why, "ulimit -n {}", AGENT_FILES)
    if footprint.daemon_files:
        for daemon, value in sorted(host.daemon_nofile.items()):
            why = f"pipes and sockets that {daemon} holds for a container"
            remedy = f"LimitNOFILE={{0}} in the unit of {daemon}, or ulimit -n {{0}} before it starts"
            yield LimitRule(f"open files of {daemon}", value, footprint.daemon_files, why, remedy, AGENT_FILES)


def _cgroup_limits(host: HostReadings, footprint: Footprint) -> Iterator[LimitRule]:
    """Yield the limits of cgroups(7): of the farm's own cgroup, and of memory."""
    if host.group_tasks is not None:
        why = "processes and threads in the farm's own cgroup, if its sandboxes are below it"
        remedy = "raise pids.max of the farm's cgroup (TasksMax= of its unit) to {}"
        yield LimitRule("pids.max", host.group_tasks, footprint.tasks + PIDS, why, remedy, host.group_tasks_used)
    if host.memory_mib is not None:
        why = "free MiB of memory, for idle sandboxes; working ones take more"
        yield LimitRule("memory", host.memory_mib, footprint.memory_mib, why, "free {} MiB")

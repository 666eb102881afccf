"""The limits of this host, read from /proc and /sys. What is not there, or not for us to read, is left out."""

import contextlib
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from sandboxes.cgroups.cgroups import find_hierarchies
from sandboxes.host.limits import NAMESPACES, HostReadings

MIB = 1024 * 1024
UNLIMITED = 1 << 60
"""A limit of control groups of version 1 that is none reads as a few pages less than 2**63."""
SYSCTLS = (
    "kernel.pid_max",
    "kernel.threads-max",
    *(f"user.max_{kind}_namespaces" for kind in (*NAMESPACES, "user")),
    "fs.inotify.max_user_instances",
    "fs.inotify.max_user_watches",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
    "fs.file-max",
    "fs.mount-max",
    "fs.nr_open",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv6.neigh.default.gc_thresh3",
)
FILES = {
    "pids": (("pids.max", "pids.current"),),
    "memory": (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}
DAEMONS = ("containerd", "dockerd")


def read_host() -> HostReadings:
    hierarchies = find_hierarchies()
    own_groups = _text("/proc/self/cgroup")
    tasks = _least_room(hierarchies.places, own_groups, "pids")
    memory = _least_room(hierarchies.places, own_groups, "memory")
    free_mib = min(psutil.virtual_memory().available, memory[0] - memory[1] if memory else UNLIMITED) // MIB
    return HostReadings(
        kernel=_kernel(),
        cgroup_version=2 if hierarchies.unified else 1,
        sysctls={name: value for name in SYSCTLS if (value := _sysctl(name)) is not None},
        tasks=_number("/proc/loadavg", r"/(\d+) "),
        open_files=_number("/proc/sys/fs/file-nr", r"^(\d+)"),
        mounts=_text("/proc/self/mountinfo").count("\n"),
        neighbours_v4=_neighbours("arp_cache"),
        neighbours_v6=_neighbours("ndisc_cache"),
        keys=(
            _number("/proc/key-users", r"^ *0: .* (\d+)/\d+ \d+/\d+$"),
            _number("/proc/key-users", r"^ *0: .* (\d+)/\d+$"),
        ),
        nofile=_finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        daemon_nofile=dict(_daemons()),
        memory_mib=max(free_mib, 0),
        group_tasks=tasks[0] if tasks else None,
        group_tasks_used=tasks[1] if tasks else 0,
    )


def read_memory_mib() -> int:
    """What this machine has, or the less that the control groups allow which this process lives under."""
    limit = _least_room(find_hierarchies().places, _text("/proc/self/cgroup"), "memory")
    return min(psutil.virtual_memory().total, limit[0] if limit else UNLIMITED) // MIB


def _least_room(places: Mapping[str, Path], own_groups: str, controller: str) -> tuple[int, int] | None:
    """Limit and use of that control group, of ours and those above it, which has the least left; None: no limit.

    ``places`` as ``Hierarchies`` has them, ``own_groups`` as /proc/self/cgroup does.
    """
    found = [
        (limit, used) for group in _chain(places, own_groups, controller) for limit, used in _use(group, controller)
    ]
    return min(found, key=lambda room: room[0] - room[1], default=None)


def _chain(places: Mapping[str, Path], own_groups: str, controller: str) -> Iterator[Path]:
    """The control group that we are in, and those above it."""
    key = "" if "" in places else controller
    place = places.get(key)
    for line in own_groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if place is not None and key in controllers.split(","):
            own = place / path.lstrip("/")
            # In a container the path may be the host's, of which nothing is mounted but our own group.
            yield from (group for group in (own, *own.parents) if group.is_relative_to(place) and group.is_dir())


def _use(group: Path, controller: str) -> Iterator[tuple[int, int]]:
    """The limit and the use of a control group, in either version; of memory, what can be dropped is not used."""
    for limit_file, use_file in FILES[controller]:
        limit = _number(group / limit_file, r"^(\d+)$")
        if 0 < limit < UNLIMITED:
            cache = _number(group / "memory.stat", r"^(?:total_)?inactive_file (\d+)$") if controller == "memory" else 0
            yield limit, _number(group / use_file, r"^(\d+)$") - cache


def _daemons() -> Iterator[tuple[str, int]]:
    for process in psutil.process_iter(["name"]):
        if process.info["name"] in DAEMONS:
            with contextlib.suppress(psutil.Error):  # it has ended, or it is not ours to ask
                limit = _finite(process.rlimit(psutil.RLIMIT_NOFILE)[0])
                if limit is not None:
                    yield process.info["name"], limit


def _kernel() -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", _text("/proc/sys/kernel/osrelease"))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _sysctl(name: str) -> int | None:
    text = _text(Path("/proc/sys", *name.split("."))).strip()
    return int(text) if text.isdecimal() else None


def _neighbours(table: str) -> int:
    """The first column of the first row, in hexadecimal: entries of the table, whatever the processor."""
    rows = _text(f"/proc/net/stat/{table}").splitlines()
    return int(rows[1].split()[0], 16) if len(rows) > 1 else 0


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _number(path: str | Path, pattern: str) -> int:
    """The first that ``pattern`` finds; 0 where there is none."""
    match = re.search(pattern, _text(path), re.MULTILINE)
    return int(match[1]) if match else 0


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""

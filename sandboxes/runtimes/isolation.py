"""A sandbox as Docker is told of it: everything that isolates it stands here, and nothing a spec says can weaken it.

Capabilities: none, also for root. What coding work does as root (pip, npm, make, git, a package's post-install script
on files that root owns) needs none; what would need one is changing a file's owner, becoming another user, and reading
or writing files that belong to another user and are closed to others. An image whose work belongs to another user
names that user (``USER``), and the sandbox runs as that user.

Network: none but loopback. ``NetworkDisabled`` makes the daemon leave the interface and the names alone, which halves
the time to start; so the names of loopback are given as a file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandboxes.errors import RuntimeUnavailable
from sandboxes.interface import MIB
from sandboxes.runtimes.seccomp import profile
from sandboxes.spec import SandboxLimits, SandboxSpec
from sandboxes.toolserver.toolbox import Toolbox

TOOLBOX_MOUNT = "/.farm"
RUN_MOUNT = "/.farm-run"
HOSTS_NAME = "hosts"
HOSTNAME = "sandbox"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"

CPU_PERIOD_US = 100_000
SOCKETS_SHARE = 8
"""Version 1 of control groups counts what waits in sockets apart from memory; it may be this part of it, on top. Docker
and runc pass over that limit, so it is set once the sandbox is there."""
OOM_SCORE = 500
"""Where the machine itself is short of memory, sandboxes go before what runs them, by so much
(proc_pid_oom_score_adj(5))."""
SIGNALS = 4096
"""Signals and timers that may be pending; without a user namespace the machine's root counts among whose they are."""
MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/diskstats",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/locks",
    "/proc/pagetypeinfo",
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/sys/fs/aio-nr",
    "/proc/sys/fs/dentry-state",
    "/proc/sys/fs/file-nr",
    "/proc/sys/fs/inode-nr",
    "/proc/sys/fs/inode-state",
    "/proc/sys/kernel/pty/nr",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/proc/vmstat",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
"""Secrets, and exact counts of what all sandboxes of the machine do: one sandbox could change such a count by taking
file locks, opening files or asking for terminals, and another could read it.

In ``/proc/pressure`` anybody may also ask for an event when the machine stalls. No limit counts these requests, and
each takes an RCU grace period to be removed: a process that had made 4,093 took over 32 s to die."""
PROC = Path("/proc")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
SECCOMP = json.dumps(profile())
OVERLAY_SIGNS = ",:\\"
"""Separators of an overlay's options and layers; Docker passes a volume's options on as they are."""


def container_config(
    spec: SandboxSpec,
    *,
    image_id: str,
    labels: Mapping[str, str],
    toolbox: Toolbox,
    run_dir: Path,
    oci_runtime: str | None = None,
) -> dict[str, Any]:
    """The body of the daemon's create call. ``spec`` has been through ``check_spec``.

    With another OCI runtime than the daemon's own the kernel inside may not be the machine's, and then vouches for
    nobody who connects: the closed run directory alone keeps the socket from the inside.
    """
    return {
        "Image": image_id,
        "Entrypoint": [f"{TOOLBOX_MOUNT}/bin/toolserver", *(["--any-peer"] if oci_runtime else [])],
        "Env": [f"{key}={value}" for key, value in spec.environment.items()],
        "Hostname": HOSTNAME,
        "Labels": {**spec.labels, **labels},
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Mounts": [
                _toolbox_volume(toolbox),
                _bind(run_dir, RUN_MOUNT, read_only=False),
                _bind(run_dir / HOSTS_NAME, "/etc/hosts", read_only=True),
            ],
            "NetworkMode": "none",
            **({"Runtime": oci_runtime} if oci_runtime else {}),
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={SECCOMP}"],
            "Privileged": False,
            "CgroupnsMode": "private",
            "IpcMode": "private",
            "MaskedPaths": list(MASKED),
            "ReadonlyPaths": read_only_paths(root_is_root=True),
            "OomScoreAdj": oom_score(),
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
            **_resources(spec.limits),
        },
    }


def read_only_paths(*, root_is_root: bool) -> list[str]:
    """Return the paths of /proc that a sandbox may not change.

    ``root_is_root``: root inside is root outside, and so the owner of the files in /proc. The mode of a file there is
    the machine's: every container sees what one has set. So all files of the machine are read-only.
    """
    if not root_is_root:
        return list(READ_ONLY)
    names = {entry.name for entry in PROC.iterdir() if not entry.name.isdigit() and not entry.is_symlink()}
    return sorted({*READ_ONLY, *(f"{PROC}/{name}" for name in names)} - set(MASKED))


def oom_score() -> int:
    """A sandbox's, above this process's own."""
    return min(1000, int(Path("/proc/self/oom_score_adj").read_text()) + OOM_SCORE)


def socket_bytes(limits: SandboxLimits) -> int:
    return limits.memory_mib * MIB // SOCKETS_SHARE


def _resources(limits: SandboxLimits) -> dict[str, Any]:
    memory = limits.memory_mib * MIB
    return {
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": int(limits.cpus * CPU_PERIOD_US),
        "PidsLimit": limits.pids,
        "Ulimits": [
            {"Name": "nofile", "Soft": limits.open_files, "Hard": limits.open_files},
            {"Name": "fsize", "Soft": limits.file_size_mib * MIB, "Hard": limits.file_size_mib * MIB},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "sigpending", "Soft": SIGNALS, "Hard": SIGNALS},
        ],
    }


def check_toolbox(toolbox: Toolbox) -> None:
    """Raise RuntimeUnavailable if Docker cannot be told of an overlay of ``toolbox``."""
    path = str(toolbox.path.absolute())
    if found := sorted(set(path) & set(OVERLAY_SIGNS)):
        raise RuntimeUnavailable(
            f"the toolbox cannot be mounted: its path {path} holds {found[0]!r}; choose another state_dir"
        )


def _toolbox_volume(toolbox: Toolbox) -> dict[str, Any]:
    """An anonymous volume that is an overlay of ``toolbox`` without an upper layer, which nothing can write to.

    A bind would share the inodes of the toolbox among all sandboxes, and by file locks on them one sandbox could
    signal to another. The inodes of an overlay are its own; the pages of its files are shared all the same. The
    daemon removes the volume with its container.
    """
    layers = f"lowerdir={toolbox.path.absolute()}:{toolbox.below.absolute()}"
    options = {"type": "overlay", "device": "overlay", "o": f"{layers},ro"}
    return {
        "Type": "volume",
        "Target": TOOLBOX_MOUNT,
        "VolumeOptions": {"NoCopy": True, "DriverConfig": {"Name": "local", "Options": options}},
    }


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }


LACKS_PRIVATE_LAYERS = "tests leave traces in the cache of a task's image, which later sandboxes on it can read"
"""What the operator is told if ``SandboxSpec.private_layers`` cannot be had."""

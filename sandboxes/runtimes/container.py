"""A sandbox as Docker is told of it: everything that isolates it stands here, and nothing a spec says can weaken it.

Capabilities: none, also for root. What coding work does as root (pip, npm, make, git, a package's post-install script
on files that root owns) needs none; what would need one is changing a file's owner, becoming another user, and reading
or writing files that belong to another user and are closed to others. An image whose work belongs to another user
names that user (``USER``), and the sandbox runs as that user.

Network: none but loopback. ``NetworkDisabled`` makes the daemon leave the interface and the names alone, which halves
the time to start; so the names of loopback are given as a file.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandboxes.errors import SpecError
from sandboxes.sandbox import MIB
from sandboxes.seccomp import profile
from sandboxes.spec import Limits, SandboxSpec

LABEL_OWNER = "farm.owner"
LABEL_SANDBOX = "farm.sandbox"
LABEL_STATE_DIR = "farm.state_dir"

TOOLBOX_MOUNT = "/.farm"
RUN_MOUNT = "/.farm-run"
HOSTNAME = "sandbox"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"

CPU_PERIOD_US = 100_000
MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
SECCOMP = json.dumps(profile())

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}")
_ENV_NAME = re.compile(r"[^=\0]+")


def container_config(
    spec: SandboxSpec, *, image_id: str, labels: Mapping[str, str], toolbox: Path, run_dir: Path, hosts: Path
) -> dict[str, Any]:
    """The body of the daemon's create call. ``spec`` has been through ``check_spec``."""
    config: dict[str, Any] = {
        "Image": image_id,
        "Entrypoint": [f"{TOOLBOX_MOUNT}/bin/toolserver"],
        "Env": [f"{key}={value}" for key, value in spec.env.items()],
        "Hostname": HOSTNAME,
        "Labels": {**spec.labels, **labels},
        "NetworkDisabled": True,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Mounts": [
                _bind(toolbox, TOOLBOX_MOUNT, read_only=True),
                _bind(run_dir, RUN_MOUNT, read_only=False),
                _bind(hosts, "/etc/hosts", read_only=True),
            ],
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={SECCOMP}"],
            "Privileged": False,
            "CgroupnsMode": "private",
            "IpcMode": "private",
            "MaskedPaths": list(MASKED),
            "ReadonlyPaths": list(READ_ONLY),
            "LogConfig": {"Type": "none"},
            "RestartPolicy": {"Name": "no"},
            **_resources(spec.limits),
        },
    }
    if spec.workdir is not None:
        config["WorkingDir"] = spec.workdir
    return config


def check_spec(spec: SandboxSpec) -> None:
    """Raises SpecError for what no sandbox can be."""
    if not _IMAGE.fullmatch(spec.image) or ".." in spec.image:
        raise SpecError(f"image {spec.image!r} is not the name of an image")
    if spec.workdir is not None and (not spec.workdir.startswith("/") or "\0" in spec.workdir):
        raise SpecError(f"workdir {spec.workdir!r}: give an absolute path")
    for key, value in spec.env.items():
        if not _ENV_NAME.fullmatch(key) or "\0" in value:
            raise SpecError(f"env {key!r}: a name has no '=' and neither it nor its value a zero byte")
    for key in spec.labels:
        if key.startswith("farm."):
            raise SpecError(f"label {key!r}: keys that begin with 'farm.' belong to the runtime")
    _check_limits(spec.limits)


def _check_limits(limits: Limits) -> None:
    for name, value, least, most in (
        ("memory_mib", limits.memory_mib, 16, 2**24),
        ("cpus", limits.cpus, 0.01, 4096),
        ("pids", limits.pids, 8, 2**22),
        ("open_files", limits.open_files, 32, 2**20),
        ("file_size_mib", limits.file_size_mib, 1, 2**24),
        ("disk_mib", limits.disk_mib, 1, 2**24),
    ):
        if not math.isfinite(value) or not least <= value <= most:
            raise SpecError(f"{name} is {value}; give a number from {least} to {most}")


def _resources(limits: Limits) -> dict[str, Any]:
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
        ],
    }


def _bind(source: Path, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }

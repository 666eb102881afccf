"""A sandbox as an OCI runtime is told of it (config.json of the OCI runtime specification 1.0.2).

What isolates it is what isolates a Docker container (see ``sandboxes.runtimes.isolation``), and a user namespace.
"""

import os
import resource
from collections.abc import Mapping
from functools import cache
from typing import Any

from sandboxes.interface import MIB
from sandboxes.runtimes.isolation import CPU_PERIOD_US, HOSTNAME, MASKED, SIGNALS, TOOLBOX_MOUNT, read_only_paths
from sandboxes.runtimes.oci import starter
from sandboxes.runtimes.oci.images.common_layer import HIDDEN_DIRECTORY, HIDDEN_FILE, LAYER_ROOT
from sandboxes.runtimes.oci.images.image_user import ImageUser
from sandboxes.runtimes.oci.images.system_files import SETTINGS
from sandboxes.runtimes.oci.oci_programs import OciProgram
from sandboxes.runtimes.oci.uid_ranges import IDS
from sandboxes.runtimes.seccomp import profile
from sandboxes.spec import SandboxLimits

SHM_BYTES = 64 * MIB
RLIMIT_SIGPENDING = 11
TERMINALS = 64
"""The machine has some 3,000 for all sandboxes."""
NAMESPACES = ("pid", "mount", "ipc", "uts", "network", "cgroup")
CAPABILITY_SETS = ("bounding", "effective", "permitted", "inheritable", "ambient")
FILTER_ANNOTATION = "run.oci.seccomp_bpf_data"
"""crun(1): a filter that is compiled already, which saves each start half its time."""


def config(
    *,
    env: Mapping[str, str],
    user: ImageUser,
    workdir: str,
    limits: SandboxLimits,
    cgroup: str,
    swap: bool,
    first_id: int,
    program: OciProgram,
) -> dict[str, Any]:
    """``swap``: the machine can limit memory and swap together. ``first_id``: who root inside is outside."""
    hidden = _hidden(mapped=bool(first_id)) if program.is_crun else ()
    made: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": user.uid, "gid": user.gid, "additionalGids": list(user.groups)},
            "args": [f"{TOOLBOX_MOUNT}/bin/toolserver", "--inherited"],
            "env": [f"{key}={value}" for key, value in env.items()],
            "cwd": workdir,
            "capabilities": {name: [] for name in CAPABILITY_SETS},
            "noNewPrivileges": True,
        },
        "root": {"path": str(starter.ROOTFS), "readonly": False},
        "hostname": HOSTNAME,
        "mounts": [*_MOUNTS, *hidden],
        "linux": {
            "namespaces": [{"type": kind} for kind in NAMESPACES],
            "maskedPaths": [] if hidden else [path for path in MASKED if not path.startswith("/sys/")],
            "readonlyPaths": read_only_paths(root_is_root=not first_id),
            "cgroupsPath": cgroup,
            "resources": _resources(limits, swap),
        },
    }
    if first_id:
        made["linux"]["namespaces"].append({"type": "user", "path": str(starter.USERS)})
        for kind in ("uidMappings", "gidMappings"):
            made["linux"][kind] = [{"containerID": 0, "hostID": first_id, "size": IDS}]
    if program.compiled_filter is None:
        made["linux"]["seccomp"] = {key: value for key, value in profile(own_disk=True).items() if key != "archMap"}
    else:
        made["annotations"] = {FILTER_ANNOTATION: program.compiled_filter}
    return made


def rlimits(limits: SandboxLimits) -> dict[int, int]:
    """By the numbers of setrlimit(2)."""
    return {
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_size_mib * MIB,
        resource.RLIMIT_CORE: 0,
        RLIMIT_SIGPENDING: SIGNALS,
    }


def _resources(limits: SandboxLimits, swap: bool) -> dict[str, Any]:
    memory = limits.memory_mib * MIB
    return {
        "memory": {"limit": memory, "swap": memory} if swap else {"limit": memory},
        # Of the kernel's own period; to set that too it looks at every group once more.
        "cpu": {"quota": int(limits.cpus * CPU_PERIOD_US)},
        "pids": {"limit": limits.pids},
        "devices": [{"allow": False, "access": "rwm"}],
    }


def _mount(destination: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": kind, "options": list(options)}


def _bind(source: object, destination: str, *options: str) -> dict[str, Any]:
    return {
        "destination": destination,
        "type": "bind",
        "source": str(source),
        "options": ["bind", "ro", "nosuid", "nodev", *options],
    }


@cache
def _hidden(*, mapped: bool) -> tuple[dict[str, Any], ...]:
    """Mask paths in /proc by binds of files of the sandbox's own layer.

    crun would bind the machine's own /dev/null over each file, which all sandboxes would share, and make a file system
    for each directory. runc refuses binds in /proc; its masks are the sandbox's own. If users are ``mapped``, a file
    that root alone may read is closed without a mask.
    """
    hidden = (path for path in MASKED if not path.startswith(("/sys/", SETTINGS)) and os.path.exists(path))
    binds = [
        _bind(_LAYER / (HIDDEN_DIRECTORY if os.path.isdir(path) else HIDDEN_FILE), path, "noexec")
        for path in hidden
        if os.stat(path).st_mode & 0o004 or not mapped
    ]
    return _bind(_LAYER / "settings", SETTINGS, "noexec"), *binds


_LAYER = starter.ROOTFS / LAYER_ROOT
_MOUNTS = [
    _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
    {**_bind(starter.DEVICES, "/dev"), "options": ["bind", "ro", "nosuid", "noexec"]},
    _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", f"max={TERMINALS}"),
    _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", f"size={SHM_BYTES}"),
    _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
    _bind(_LAYER / "sys", "/sys", "noexec"),
    _bind(_LAYER, TOOLBOX_MOUNT),
    _bind(_LAYER / "hosts", "/etc/hosts"),
]

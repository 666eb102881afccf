"""Make a sandbox's /sys: copies of the files that programs read to learn about processors and pages.

A mount of sysfs is either one for all sandboxes, whose file locks and watches they would share, or one more file system
for each sandbox, which makes every start slower the more sandboxes there are. The copies are as they were when the
owner of the sandboxes began.
"""

import contextlib
import os
from pathlib import Path

from sandboxes.runtimes.isolation import MASKED

SYSFS = Path("/sys")
SETTINGS = "/proc/sys/fs"
"""Settings of the machine among exact counts of what all sandboxes do: one copy is one mount for all masks."""
FILE_BYTES = 64 * 1024
COPIED = (
    "devices/system/cpu/*",
    "devices/system/cpu/cpu[0-9]*/online",
    "devices/system/cpu/cpu[0-9]*/topology/*",
    "devices/system/cpu/cpu[0-9]*/cache/index*/*",
    "devices/system/cpu/cpu[0-9]*/regs/identification/*",
    "devices/system/cpu/smt/*",
    "devices/system/cpu/vulnerabilities/*",
    "devices/system/node/*",
    "devices/system/node/node[0-9]*/cpulist",
    "devices/system/node/node[0-9]*/cpumap",
    "devices/system/node/node[0-9]*/distance",
    "devices/virtual/net/lo/*",
    "class/net/lo",
    "kernel/mm/transparent_hugepage/*",
    "kernel/mm/transparent_hugepage/khugepaged/max_ptes_none",
    "kernel/mm/hugepages/*/nr_hugepages",
)
"""Files and links that match; directories are left out."""
DIRECTORIES = ("block", "bus", "class", "devices", "firmware", "fs/cgroup", "kernel", "module", "power")


def copy_system(place: Path, source: Path = SYSFS) -> None:
    """Copy to the new directory ``place`` what matches ``COPIED`` in ``source`` and can be read by everybody."""
    for name in DIRECTORIES:
        (place / name).mkdir(parents=True)
    for pattern in COPIED:
        for path in source.glob(pattern):
            with contextlib.suppress(OSError):  # a file that says nothing, or a processor that went just now
                _copy(path, place / path.relative_to(source))


def copy_settings(place: Path, source: Path = Path(SETTINGS)) -> None:
    """Copy to the new directory ``place`` the settings in ``source``, without the counts that are masked."""
    place.mkdir()
    for path in source.rglob("*"):
        if str(path) not in MASKED:
            with contextlib.suppress(OSError):
                _copy(path, place / path.relative_to(source))


def _copy(path: Path, target: Path) -> None:
    if path.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.readlink(path))
    elif path.is_file() and path.stat().st_mode & 0o004:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

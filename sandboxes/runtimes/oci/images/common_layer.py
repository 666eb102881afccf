"""Make the layer of files that every sandbox has, topmost below what a sandbox writes.

.farm/bin, lib    the toolbox
.farm/hosts       bound at /etc/hosts
.farm/dev         device files, bound at /dev
.farm/sys         what programs read in /sys, as files (``sandboxes.runtimes.oci.images.system_files``), bound at /sys
.farm/settings    the same of /proc/sys/fs
.farm/hidden      an empty file and an empty directory, bound over paths of /proc

An overlay has inodes of its own for the files of its layers. So sandboxes that use one layer share the pages of its
files, but no file lock, no lease and no watch on them, by which one sandbox could signal to another.
"""

import hashlib
import os
import shutil
import stat
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable
from sandboxes.ownership.scratch_dirs import scratch
from sandboxes.runtimes.isolation import HOSTS, MASKED, TOOLBOX_MOUNT
from sandboxes.runtimes.oci.images.system_files import COPIED, copy_settings, copy_system

LAYER_ROOT = TOOLBOX_MOUNT.removeprefix("/")
HIDDEN_FILE, HIDDEN_DIRECTORY = "hidden/file", "hidden/directory"
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
MOUNT_POINTS = {"pts": 0o755, "shm": 0o1777, "mqueue": 0o1777}
"""With their modes, which runc gives to what it mounts there."""
OPAQUE = "trusted.overlay.opaque"


def ensure_layer(home: Path, toolbox: Path) -> Path:
    """Return the layer with ``toolbox`` below ``home``, and make it unless an earlier process of the owner did.

    Sandboxes that outlived that process still use its layer, so a layer is never changed. Blocks for some 10 ms.
    Raises RuntimeUnavailable.
    """
    layer = home / f"layer-{_digest(toolbox)}"
    if layer.is_dir():
        return layer
    try:
        with scratch(home) as place:
            made = place / "layer"
            _make(made / LAYER_ROOT, toolbox)
            made.chmod(0o755)
            made.rename(layer)
    except OSError as error:
        raise RuntimeUnavailable(
            f"the layer of the toolbox cannot be made below {home}: {error.strerror}; "
            "the oci runtime needs device files and trusted extended attributes there"
        ) from None
    return layer


def _digest(toolbox: Path) -> str:
    digest = hashlib.sha256(repr((toolbox, HOSTS, DEVICES, LINKS, COPIED, MASKED)).encode())
    for path in sorted(toolbox.rglob("*")):
        found = path.lstat()
        digest.update(f"{path.name}\0{found.st_ino}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _make(root: Path, toolbox: Path) -> None:
    shutil.copytree(toolbox, root, copy_function=_link)
    (root / "hosts").write_text(HOSTS)
    _make_devices(root / "dev")
    copy_system(root / "sys")
    copy_settings(root / "settings")
    (root / HIDDEN_DIRECTORY).mkdir(parents=True)
    (root / HIDDEN_FILE).touch()
    for path in (root, *root.rglob("*")):  # readable inside, also with a closed umask here
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
        elif path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
            path.chmod(path.stat().st_mode | 0o444)
    for name, mode in MOUNT_POINTS.items():
        (root / "dev" / name).chmod(mode)
    os.setxattr(root, OPAQUE, b"y")  # nothing of an image shows through


def _link(source: str, target: str) -> None:
    """Make a further name of the same file, so that all layers share its pages; else copy it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _make_devices(place: Path) -> None:
    place.mkdir()
    for name, number in DEVICES.items():
        os.mknod(place / name, stat.S_IFCHR | 0o666, os.makedev(*number))
        (place / name).chmod(0o666)
    for name, target in LINKS.items():
        (place / name).symlink_to(target)
    for name in MOUNT_POINTS:
        (place / name).mkdir()

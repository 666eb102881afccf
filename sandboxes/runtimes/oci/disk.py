"""Where an owner's sandboxes are kept: a directory each, bounded, copied and removed at a cost that does not grow with
what it holds.

``QuotaDisk`` is a btrfs file system in a sparse file. Each sandbox is a subvolume: making one, setting its limit and
removing it take less than 0.1 ms each, and a copy (a snapshot) shares all blocks. It is mounted nowhere (see
``mounts``), so a death leaves no mount; its loop device goes with the last user. ``PlainDisk`` is a directory: no
limits, and copies and removals as slow as what they hold is large.
"""

import contextlib
import errno
import fcntl
import os
import struct
import subprocess
from pathlib import Path
from typing import Protocol

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.oci import mounts
from sandboxes.runtimes.oci.loop import attached, device_of
from sandboxes.sandbox import MIB
from sandboxes.trees import remove_tree

IMAGE = "disk.img"
LEAST_MIB = 1024
COPY_S = 120.0
"""So long a copy may take where it is a copy of every byte."""
SHARE_OF_FREE = 0.9
"""So much of what is free where the owner lives may its sandboxes fill together."""

OPTIONS = {"nodatasum": None, "nobarrier": None, "discard": "async"}
"""Nothing on it outlives its owner, so it need not survive a crash of the machine."""


class Disk(Protocol):
    @property
    def path(self) -> Path:
        """Of the directory that holds all, as this process reaches it."""
        ...

    @property
    def bounded(self) -> bool: ...

    def tree(self) -> int:
        """A detached mount of it, the caller's to close."""
        ...

    def names(self) -> set[str]:
        """Of the directories on it."""
        ...

    def make(self, name: str, limit_mib: int) -> None: ...

    def copy(self, source: str, name: str, limit_mib: int) -> None:
        """What the two share counts against the limit of the one who wrote it, as long as either holds it."""
        ...

    def remove(self, name: str) -> None:
        """Nothing there is no error."""
        ...

    def close(self) -> None: ...


def open_disk(home: Path) -> tuple[Disk, str]:
    """The disk of the owner whose directory is ``home``, and what it lacks ("" for nothing). Blocks for some 0.1 s."""
    try:
        return QuotaDisk(home), ""
    except RuntimeUnavailable as error:
        return PlainDisk(home / "disk"), str(error)


class PlainDisk:
    bounded = False

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o755, exist_ok=True)
        self.path = path

    def tree(self) -> int:
        return mounts.clone(self.path)

    def names(self) -> set[str]:
        return set(os.listdir(self.path))

    def make(self, name: str, limit_mib: int) -> None:
        (self.path / name).mkdir(mode=0o755)

    def copy(self, source: str, name: str, limit_mib: int) -> None:
        command = ["cp", "-a", "--reflink=auto", str(self.path / source), str(self.path / name)]
        try:
            copied = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COPY_S)
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, f"a copy took more than {COPY_S:g} s") from None
        if copied.returncode != 0:
            raise OSError(errno.EIO, f"a copy failed: {copied.stderr.strip()[-200:]}")

    def remove(self, name: str) -> None:
        remove_tree(self.path / name)

    def close(self) -> None:
        pass


class QuotaDisk:
    bounded = True

    def __init__(self, home: Path) -> None:
        """Raises RuntimeUnavailable where this machine cannot."""
        self._image = home / IMAGE
        try:
            living = _mount_living(self._image)
            self._mount = _mount_fresh(self._image) if living is None else living
        except FileNotFoundError as error:
            raise RuntimeUnavailable(
                f"disks have no limits here: {error.filename} is missing; install btrfs-progs"
            ) from None
        except subprocess.CalledProcessError as error:
            said = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeUnavailable(f"disks have no limits here: {error.cmd[0]}: {' '.join(said)}") from None
        except OSError as error:
            raise RuntimeUnavailable(f"disks have no limits here: btrfs in {home}: {error.strerror}") from None
        # The one keeps it mounted, the other takes requests.
        self.path = Path(f"/proc/self/fd/{self._mount}")
        self._root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _enable_quotas(self._root)
        except OSError as error:
            self.close()
            raise RuntimeUnavailable(f"disks have no limits here: btrfs quotas: {error.strerror}") from None

    def tree(self) -> int:
        mount = _mount_living(self._image)
        assert mount is not None  # we hold it mounted
        return mount

    def names(self) -> set[str]:
        return set(os.listdir(self.path))

    def make(self, name: str, limit_mib: int) -> None:
        _on_name(self._root, _SUBVOL_CREATE, name)
        self._limit(name, limit_mib)

    def copy(self, source: str, name: str, limit_mib: int) -> None:
        fd = os.open(self.path / source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            arguments = bytearray(struct.pack("<qQQ32s4040s", fd, 0, 0, b"", name.encode()))
            fcntl.ioctl(self._root, _SNAP_CREATE_V2, arguments)
        finally:
            os.close(fd)
        self._limit(name, limit_mib)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            _on_name(self._root, _SNAP_DESTROY, name)

    def close(self) -> None:
        os.close(self._root)
        os.close(self._mount)

    def _limit(self, name: str, limit_mib: int) -> None:
        fd = os.open(self.path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = bytearray(struct.pack("<QQ", 0, _FIRST_OBJECT).ljust(4096, b"\0"))
            fcntl.ioctl(fd, _INO_LOOKUP, found)
            subvolume = int.from_bytes(found[:8], "little")
            limit = struct.pack("<QQQQQQ", subvolume, _LIMIT_MAX_REFERENCED, limit_mib * MIB, 0, 0, 0)
            fcntl.ioctl(fd, _QGROUP_LIMIT, limit)
        finally:
            os.close(fd)


def _format(image: Path) -> None:
    free = os.statvfs(image.parent)
    size = int(free.f_bavail * free.f_frsize * SHARE_OF_FREE)
    if size < LEAST_MIB * MIB:
        raise OSError(errno.ENOSPC, f"less than {LEAST_MIB} MiB are free")
    new = image.with_suffix(".new")
    with open(new, "wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.btrfs", "-q", "-f", "-m", "single", "-d", "single", new], capture_output=True, check=True)
    new.rename(image)


def _mount_living(image: Path) -> int | None:
    """One more detached mount of the file system that we, or sandboxes that outlived their owner, hold mounted."""
    while (device := device_of(image)) is not None:
        try:
            return mounts.mount("btrfs", device, OPTIONS)
        except OSError:  # the last of them has just gone, and the device goes with it
            if device_of(image) is not None:
                raise
    return None


def _mount_fresh(image: Path) -> int:
    """A detached mount of a new file system. What an earlier one holds is of no use: nothing lives on it."""
    image.unlink(missing_ok=True)
    _format(image)
    with attached(image) as device:
        return mounts.mount("btrfs", device, OPTIONS)


def _enable_quotas(root: int) -> None:
    """Simple quotas (Linux 6.7) count what a subvolume wrote; the older ones, who refers to what, at a higher price."""
    try:
        fcntl.ioctl(root, _QUOTA_CTL, struct.pack("<QQ", _ENABLE_SIMPLE, 0))
    except OSError:
        fcntl.ioctl(root, _QUOTA_CTL, struct.pack("<QQ", _ENABLE, 0))


def _on_name(root: int, request: int, name: str) -> None:
    fcntl.ioctl(root, request, bytearray(struct.pack("<q4088s", 0, name.encode())))


def _request(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


# <linux/btrfs.h>
_SUBVOL_CREATE = _request(1, 14, 4096)
_SNAP_DESTROY = _request(1, 15, 4096)
_INO_LOOKUP = _request(3, 18, 4096)
_SNAP_CREATE_V2 = _request(1, 23, 4096)
_QUOTA_CTL = _request(3, 40, 16)
_QGROUP_LIMIT = _request(2, 43, 48)
_FIRST_OBJECT = 256
_LIMIT_MAX_REFERENCED = 1
_ENABLE, _ENABLE_SIMPLE = 1, 4

"""Disks with limits: btrfs in a sparse file, by the calls of btrfs-ioctl(2)."""

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from sandboxes.errors import DiskFull, RuntimeUnavailable
from sandboxes.interface import MIB
from sandboxes.linux.small_files import read_small_file
from sandboxes.runtimes.oci.storage import mounts
from sandboxes.runtimes.oci.storage.disk_quota import DiskQuota
from sandboxes.runtimes.oci.storage.loop_device import attached, device_of

IMAGE = "disk.img"
FORMATTER = "mkfs.btrfs"
LEAST_MIB = 1024
SHARE_OF_FREE = 0.9
"""So much of what is free where the owner lives may its sandboxes fill together."""
KEPT_MIB = 512
"""So much is left to others there, whatever was granted."""
FLOOR_MIB = 64
"""Where less is left, what sandboxes write may be lost, and so they are."""
RECLAIM_S, RECLAIM_POLL_S = 2.0, 0.002
PAUSE_S = 1.0
"""Between one look through what was removed and the next, where nobody waits for it."""

PASSING = "."
"""What begins so is nobody's, and goes at once; or, where its maker died, with the next owner."""

CLASSIC, SIMPLE = 1, 4
"""Kinds of quotas, by their numbers in <linux/btrfs.h>. Simple ones (Linux 6.7) count what a subvolume wrote against
it, whoever else refers to it; classic ones, at a higher price, what it refers to, and of that what nobody else does."""
LACK_OF_CLASSIC = (
    "before Linux 6.7 what a fork shares with its source is charged to neither alone: "
    "forks and their source may fill up to twice what they were granted"
)

_libc = ctypes.CDLL(None, use_errno=True)

OPTIONS = {"nodatasum": None, "nobarrier": None, "discard": "async"}
"""Nothing on it outlives its owner, so it need not survive a crash of the machine."""


class QuotaDisk:
    bounded = True

    def __init__(self, home: Path, places: int, *, quotas: Sequence[int] = (SIMPLE, CLASSIC)) -> None:
        """Raises RuntimeUnavailable where this machine cannot, DiskFull where it has no room.

        ``quotas``: the first of these that the kernel has.
        """
        self._home = str(home)
        self._image = home / IMAGE
        try:
            living = _mount_living(self._image)
            self._mount = _mount_fresh(self._image) if living is None else living
        except FileNotFoundError as error:
            remedy = "; install btrfs-progs" if error.filename == FORMATTER else ""
            raise RuntimeUnavailable(f"disks have no limits here: {error.filename} is missing{remedy}") from None
        except subprocess.CalledProcessError as error:
            said = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeUnavailable(f"disks have no limits here: {error.cmd[0]}: {' '.join(said)}") from None
        except OSError as error:
            raise RuntimeUnavailable(f"disks have no limits here: btrfs in {home}: {error.strerror}") from None
        # The one keeps it mounted, the other takes requests.
        self.path = Path(f"/proc/self/fd/{self._mount}")
        self._root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._quotas = _enable_quotas(self._root, quotas)
            self._counts = _counts_of(self._root)
            if self._quotas == CLASSIC:
                with contextlib.suppress(FileNotFoundError):  # an older kernel, which counts whatever is removed
                    (self._counts / "drop_subtree_threshold").write_text(_NO_THRESHOLD)
        except OSError as error:
            self.close()
            raise RuntimeUnavailable(f"disks have no limits here: btrfs quotas: {error.strerror}") from None
        self._failure = ""
        self._copies: set[str] = set()
        self._copies_left = False
        self._reclaimed_at = 0.0
        self._subvolumes: dict[str, int] = {}
        size = os.statvfs(self._root)
        self._room = DiskQuota(size.f_blocks * size.f_frsize // MIB, places)
        for name in set(os.listdir(self.path)) - self.names():
            self._destroy(name)
        for name in self.names():  # of sandboxes that outlived their owner
            self._subvolumes[name] = self._subvolume(name)
            self._room.hold(name)

    def tree(self) -> int:
        mount = _mount_living(self._image)
        assert mount is not None  # we hold it mounted
        return mount

    def names(self) -> set[str]:
        return {name for name in os.listdir(self.path) if not name.startswith(PASSING)}

    @property
    def share_mib(self) -> int:
        """The most that a sandbox is granted."""
        return self._room.share

    def make(self, name: str, limit_mib: int) -> None:
        granted = self._room.grant(name, limit_mib, **self._outlook())
        try:
            _on_name(self._root, _SUBVOL_CREATE, name)
            self._limit(name, granted)
        except OSError:
            self._room.release(name, 0)
            raise

    def copy(self, source: str, name: str, limit_mib: int) -> None:
        fd = os.open(self.path / source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            granted = self._room.grant(name, limit_mib, **self._outlook())
            self._snapshot(fd, name)
            self._copies.add(name)
            self._limit(name, granted, copied=True)
        except OSError:
            self._room.release(name, 0)
            raise
        finally:
            os.close(fd)

    def remove(self, name: str) -> None:
        written = self._written_mib(name)
        self._destroy(name)
        self._room.release(name, written)
        self._subvolumes.pop(name, None)
        self._copies_left |= name in self._copies
        self._copies.discard(name)

    def unwritten_mib(self, name: str) -> int:
        try:
            return self._counted(name, "rsv_data") // MIB
        except (OSError, KeyError):
            return 0

    def write_down(self, name: str) -> None:
        with contextlib.suppress(OSError, KeyError):  # it goes just now
            held = self._counted(name, "referenced") + self._counted(name, "rsv_data")
            if 2 * held <= self._room.granted(name) * MIB:
                self._write_down(name)

    def _write_down(self, name: str) -> None:
        """By a snapshot, which writes down what is dirty in its source and in no other, and which goes at once.

        Until the kernel has let go of it, in some ms, it holds what its source removes: so not of one whose limit
        could be reached by that.
        """
        fd = os.open(self.path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            self._snapshot(fd, PASSING + name)
        finally:
            os.close(fd)
            self._destroy(PASSING + name)
            self._start_commit()

    def has_leavings(self) -> bool:
        # What a copy shares with its source counts against the source until the copy's blocks are taken.
        wanted = self._copies_left or self._room.leaving >= self._room.share
        return wanted and time.monotonic() >= self._reclaimed_at + PAUSE_S

    def is_short(self) -> bool:
        return self._room.is_short()

    def reclaim(self) -> None:
        with contextlib.suppress(OSError):  # of a disk that failed, as ``failure`` tells
            self._reclaim()

    def _reclaim(self) -> None:
        leaving = self._room.leaving
        self._copies_left, self._reclaimed_at = False, time.monotonic()
        until = time.monotonic() + RECLAIM_S
        try:
            while self._queued() and time.monotonic() < until:
                self._commit()  # wakes who takes the blocks of what was removed until then
                time.sleep(RECLAIM_POLL_S)
        except OSError:  # before Linux 6.13; the program looks once a second
            self._commit()
            command = ["btrfs", "subvolume", "sync", f"/proc/self/fd/{self._root}"]
            subprocess.run(command, capture_output=True, check=False, pass_fds=[self._root])
        self._commit()  # with which they are free
        self._room.came_back(leaving)

    def _commit(self) -> None:
        """What is dirty in files stays so."""
        fcntl.ioctl(self._root, _WAIT_SYNC, self._start_commit())

    def _start_commit(self) -> bytes:
        """The number of the transaction."""
        os.utime(self._root)  # one with nothing in it would wake nobody
        transaction = bytearray(8)
        fcntl.ioctl(self._root, _START_SYNC, transaction)
        return bytes(transaction)

    def _queued(self) -> int:
        """So many subvolumes are removed, and their blocks still taken."""
        found = bytearray(struct.pack("<QII", 0, _COUNT_QUEUED, 0))
        fcntl.ioctl(self._root, _SUBVOL_SYNC_WAIT, found)
        return int(struct.unpack("<QII", found)[2])

    def failure(self) -> str:
        self._failure = self._failure or self._find_failure()
        return self._failure

    def _find_failure(self) -> str:
        # The kernel counts a write that failed for want of room as no error of the device, and tells nobody but who
        # waits for that very write.
        below = os.statvfs(self._home)
        if below.f_bavail * below.f_frsize < FLOOR_MIB * MIB:
            return f"the disk of sandboxes has no room left in {self._home}"
        errors = bytearray(_OF_THE_ONE_DEVICE)
        try:
            fcntl.ioctl(self._root, _GET_DEV_STATS, errors)
        except OSError as error:
            return f"the disk of sandboxes fails: {error.strerror}"
        written, _, flushed, *_ = struct.unpack_from("<5Q", errors, 24)
        if written or flushed or os.statvfs(self._root).f_flag & os.ST_RDONLY:
            return f"the disk of sandboxes failed, {self._image}; the kernel's log says of what"
        return ""

    def close(self) -> None:
        os.close(self._root)
        os.close(self._mount)

    @property
    def lack(self) -> str:
        """What its limits do not bound; "" for nothing."""
        return LACK_OF_CLASSIC if self._quotas == CLASSIC else ""

    def _limit(self, name: str, limit_mib: int, *, copied: bool = False) -> None:
        subvolume = self._subvolumes[name] = self._subvolume(name)
        flags, referenced, exclusive = _LIMIT_MAX_REFERENCED, limit_mib * MIB, 0
        if copied and self._quotas == CLASSIC:  # which count what it began with as its own, too
            flags, exclusive = flags | _LIMIT_MAX_EXCLUSIVE, referenced
            referenced += self._counted(name, "referenced")
        limit = struct.pack("<QQQQQQ", subvolume, flags, referenced, exclusive, 0, 0)
        fcntl.ioctl(self._root, _QGROUP_LIMIT, limit)

    def _snapshot(self, source: int, name: str) -> None:
        _ioctl(self._root, _SNAP_CREATE_V2, bytearray(struct.pack("<qQQ32s4040s", source, 0, 0, b"", name.encode())))

    def _destroy(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            _on_name(self._root, _SNAP_DESTROY, name)

    def _subvolume(self, name: str) -> int:
        """Its number."""
        fd = os.open(self.path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = bytearray(struct.pack("<QQ", 0, _FIRST_OBJECT).ljust(4096, b"\0"))
            _ioctl(fd, _INO_LOOKUP, found)
            return int.from_bytes(found[:8], "little")
        finally:
            os.close(fd)

    def _written_mib(self, name: str) -> int:
        """So much comes back when it goes."""
        try:
            return -(-self._counted(name, "exclusive") // MIB)
        except (OSError, KeyError):  # there is no such subvolume
            return 0

    def _counted(self, name: str, what: str) -> int:
        """Bytes, by the kernel's last count."""
        return int(read_small_file(self._counts / f"0_{self._subvolumes[name]}" / what))

    def _outlook(self) -> dict[str, int]:
        """What there is room for, in MiB: in all, and now."""
        below, here = os.statvfs(self._home), os.statvfs(self._root)
        spare = below.f_bavail * below.f_frsize // MIB - KEPT_MIB
        held = self._image.stat().st_blocks * 512 // MIB
        return {"backed": held + spare, "free": min(spare, here.f_bavail * here.f_frsize // MIB)}


def _format(image: Path) -> None:
    free = os.statvfs(image.parent)
    size = int(free.f_bavail * free.f_frsize * SHARE_OF_FREE)
    if size < LEAST_MIB * MIB:
        there = f"{size // MIB} can be had in {image.parent}"
        raise DiskFull(f"sandboxes need {LEAST_MIB} MiB, and {there}; free some, or name another state_dir")
    new = image.with_suffix(".new")
    with open(new, "wb") as file:
        file.truncate(size)
    subprocess.run([FORMATTER, "-q", "-f", "-m", "single", "-d", "single", new], capture_output=True, check=True)
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


def _enable_quotas(root: int, kinds: Sequence[int]) -> int:
    """The first of ``kinds`` that the kernel has. Raises OSError where it has none."""
    for kind in kinds[:-1]:
        with contextlib.suppress(OSError):
            fcntl.ioctl(root, _QUOTA_CTL, struct.pack("<QQ", kind, 0))
            return kind
    fcntl.ioctl(root, _QUOTA_CTL, struct.pack("<QQ", kinds[-1], 0))
    return kinds[-1]


def _counts_of(root: int) -> Path:
    """Where the kernel tells what each subvolume holds."""
    about = bytearray(1024)
    fcntl.ioctl(root, _FS_INFO, about)
    return Path("/sys/fs/btrfs", str(uuid.UUID(bytes=bytes(about[16:32]))), "qgroups")


def _on_name(root: int, request: int, name: str) -> None:
    _ioctl(root, request, bytearray(struct.pack("<q4088s", 0, name.encode())))


def _ioctl(fd: int, request: int, told: bytearray) -> None:
    """``fcntl.ioctl`` would hold the interpreter's lock, and so all threads, while it tells more than 1 KiB."""
    if _libc.ioctl(fd, ctypes.c_ulong(request), (ctypes.c_char * len(told)).from_buffer(told)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _request(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


# <linux/btrfs.h>
_SUBVOL_CREATE = _request(1, 14, 4096)
_SNAP_DESTROY = _request(1, 15, 4096)
_INO_LOOKUP = _request(3, 18, 4096)
_SNAP_CREATE_V2 = _request(1, 23, 4096)
_WAIT_SYNC = _request(1, 22, 8)
_START_SYNC = _request(2, 24, 8)
_FS_INFO = _request(2, 31, 1024)
_QUOTA_CTL = _request(3, 40, 16)
_QGROUP_LIMIT = _request(2, 43, 48)
_GET_DEV_STATS = _request(3, 52, 1032)
_SUBVOL_SYNC_WAIT = _request(1, 65, 16)
_OF_THE_ONE_DEVICE = struct.pack("<QQQ", 1, 5, 0).ljust(1032, b"\0")
_COUNT_QUEUED = 2
_FIRST_OBJECT = 256
_NO_THRESHOLD = "8"  # levels, as many as a tree can have: else, where a large one goes, no limit holds any more
_LIMIT_MAX_REFERENCED, _LIMIT_MAX_EXCLUSIVE = 1, 2

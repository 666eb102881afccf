"""Disks that bound what each sandbox writes, copy it at once, and leave no mount."""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from sandboxes.errors import DiskFull, RuntimeUnavailable
from sandboxes.interface import MIB
from sandboxes.runtimes.oci.storage.disk import SandboxDisk, open_disk
from sandboxes.runtimes.oci.storage.loop_device import attached
from sandboxes.runtimes.oci.storage.plain_disk import PlainDisk
from sandboxes.runtimes.oci.storage.quota_disk import CLASSIC, SIMPLE, QuotaDisk
from tests.support.machine_disk import empty_machine, fill_machine, machine_disk, take
from tests.support.services import missing

PLACES = 8


@pytest.fixture
def quota_disk(tmp_path: Path) -> Iterator[QuotaDisk]:
    disk = disk_with_limits(tmp_path)
    yield disk
    disk.close()


@pytest.fixture
def classic_disk(tmp_path: Path) -> Iterator[QuotaDisk]:
    """As on Linux before 6.7."""
    disk = disk_with_limits(tmp_path, CLASSIC)
    yield disk
    disk.close()


def disk_with_limits(place: Path, *quotas: int) -> QuotaDisk:
    try:
        return QuotaDisk(place, PLACES, quotas=quotas or (SIMPLE, CLASSIC))
    except RuntimeUnavailable as error:
        missing("a disk with limits", str(error))
        raise


@pytest.fixture(params=["quota", "plain"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxDisk:
    if request.param == "plain":
        return PlainDisk(tmp_path / "disk")
    quota: QuotaDisk = request.getfixturevalue("quota_disk")
    return quota


def loop_devices(image: Path) -> list[str]:
    """Those that hold ``image``, by the kernel's word."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # somebody else's, let go just now
            if backing.read_text().strip() == str(image):
                found.append(backing.parts[3])
    return found


def fill(path: Path, size_mib: int) -> None:
    with open(path, "wb", buffering=0) as file:
        for _ in range(size_mib):
            file.write(os.urandom(MIB))


def touch_many(place: Path, count: int) -> None:
    for number in range(count):
        (place / f"{number:060}").touch()


def test_copy_is_complete_and_independent(disk: SandboxDisk) -> None:
    disk.make("one", 64)
    one = disk.path / "one"
    (one / "directory").mkdir()
    (one / "directory" / "file").write_bytes(b"before")
    os.setxattr(one / "directory", "trusted.overlay.opaque", b"y")
    os.mknod(one / "whiteout", 0o20000, os.makedev(0, 0))
    os.chown(one / "directory" / "file", 1234, 5678)
    disk.copy("one", "two", 64)
    two = disk.path / "two"
    (one / "directory" / "file").write_bytes(b"after")
    (two / "mine").write_bytes(b"")
    assert (two / "directory" / "file").read_bytes() == b"before"
    assert (two / "directory" / "file").stat().st_uid == 1234
    assert os.getxattr(two / "directory", "trusted.overlay.opaque") == b"y"
    assert (two / "whiteout").is_char_device()
    assert not (one / "mine").exists()


def test_remove_is_idempotent(disk: SandboxDisk) -> None:
    disk.make("one", 64)
    (disk.path / "one" / "file").write_bytes(b"x")
    disk.remove("one")
    disk.remove("one")
    assert list(disk.path.iterdir()) == []
    disk.make("one", 64)
    assert list((disk.path / "one").iterdir()) == []


@pytest.mark.parametrize("quotas", ["quota_disk", "classic_disk"])
@pytest.mark.parametrize("copied", [False, True], ids=["made", "copied"])
def test_limit_counts_bytes_and_files_of_one_sandbox(request: pytest.FixtureRequest, copied: bool, quotas: str) -> None:
    quota_disk: QuotaDisk = request.getfixturevalue(quotas)
    quota_disk.make("bounded", 16)
    if copied:
        quota_disk.copy("bounded", "copy", 16)
    quota_disk.make("other", 16)
    place = quota_disk.path / ("copy" if copied else "bounded")
    with pytest.raises(OSError, match="quota") as full:
        fill(place / "big", 64)
    assert full.value.errno == errno.EDQUOT
    assert (place / "big").stat().st_size <= 16 * MIB
    (place / "big").unlink()
    (quota_disk.path / "other" / "file").write_bytes(os.urandom(8 * MIB))
    with pytest.raises(OSError, match="quota"):
        touch_many(place, 1_000_000)


def test_classic_quotas_limit_new_data_of_copy(classic_disk: QuotaDisk) -> None:
    classic_disk.make("source", 16)
    source, copy = classic_disk.path / "source", classic_disk.path / "copy"
    flush(source / "before", os.urandom(12 * MIB))
    classic_disk.copy("source", "copy", 16)
    flush(copy / "own", os.urandom(12 * MIB))
    for place in (source, copy):
        with pytest.raises(OSError, match="quota"):
            fill(place / "too much", 8)
        (place / "too much").unlink()
    # What it had of its own is shared as soon as it is copied in turn, and bounds it all the same.
    classic_disk.copy("copy", "copy of it", 16)
    with pytest.raises(OSError, match="quota"):
        fill(copy / "too much", 8)
    flush(classic_disk.path / "copy of it" / "own", os.urandom(12 * MIB))


def test_classic_quotas_report_their_gap(classic_disk: QuotaDisk) -> None:
    assert "forks and their source may fill up to twice their limits" in classic_disk.limits_gap


def test_simple_quotas_have_no_gap(quota_disk: QuotaDisk) -> None:
    assert quota_disk.limits_gap == ""


def test_disk_leaves_no_mount_and_no_device(tmp_path: Path) -> None:
    disk = disk_with_limits(tmp_path)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert len(loop_devices(tmp_path / "disk.img")) == 1
    disk.close()
    assert loop_devices(tmp_path / "disk.img") == []


def flush(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def take_all(place: Path) -> None:
    """Whatever its limit leaves, in large files and then in ever smaller ones."""
    for size_mib in (64, 8, 1):
        with contextlib.suppress(OSError):
            for number in count():
                take(place / f"{size_mib}-{number}", size_mib)
    with contextlib.suppress(OSError):
        for number in range(5_000):
            (place / f"{number:0200}").write_bytes(b"x" * 2000)


def test_full_sandbox_leaves_others_their_grants(tmp_path: Path) -> None:
    with machine_disk(tmp_path / "machine", 3000) as place:
        disk = QuotaDisk(place, 4)
        try:
            for name in ("hog", "another", "sibling"):
                disk.make(name, 10_240)
            take_all(disk.path / "hog")
            take_all(disk.path / "another")
            take(disk.path / "sibling" / "all", disk.share_mib - 8)
            disk.make("newcomer", 10_240)
            take(disk.path / "newcomer" / "all", disk.share_mib - 8)
            # Beyond what the disk is for: little, and then nothing.
            disk.make("beyond", 10_240)
            with pytest.raises(OSError, match="quota"):
                take(disk.path / "beyond" / "all", disk.share_mib)
        finally:
            disk.close()


def test_removed_space_can_be_written_again(tmp_path: Path) -> None:
    with machine_disk(tmp_path / "machine", 3000) as place:
        disk = QuotaDisk(place, 2)
        try:
            for number in range(6):
                if disk.needs_reclaim():
                    disk.reclaim()
                disk.make(f"{number}", 10_240)
                take(disk.path / f"{number}" / "most", disk.share_mib - 8)
                (disk.path / f"{number}" / "small").write_bytes(os.urandom(MIB))
                if number:
                    disk.remove(f"{number - 1}")
        finally:
            disk.close()


def test_full_host_raises_disk_full(tmp_path: Path) -> None:
    with machine_disk(tmp_path / "machine", 1024) as place, pytest.raises(DiskFull, match="sandboxes need 1024 MiB"):
        open_disk(place, PLACES)


def test_grants_stay_within_free_host_space(tmp_path: Path) -> None:
    with machine_disk(tmp_path / "machine", 4000) as place:
        disk = QuotaDisk(place, 2)
        try:
            take(place / "of another", 2600)
            disk.make("one", 10_240)
            take_all(disk.path / "one")
            assert disk.failure() == ""
            os.sync()
            assert disk.failure() == ""
        finally:
            disk.close()


def test_disk_fails_after_full_host_disk(tmp_path: Path) -> None:
    with machine_disk(tmp_path / "machine", 2000) as place:
        disk = QuotaDisk(place, 2)
        try:
            disk.make("one", 10_240)
            assert disk.failure() == ""
            fill_machine(place)
            assert "has no free space" in disk.failure()
            empty_machine(place)
            assert "has no free space" in disk.failure()
        finally:
            disk.close()


def test_read_only_disk_is_reported_as_failed(tmp_path: Path) -> None:
    with machine_disk(tmp_path / "machine", 2000) as place:
        disk = QuotaDisk(place, 2)
        try:
            disk.make("one", 10_240)
            fill_machine(place, left_mib=1)
            for number in range(100):
                with contextlib.suppress(OSError):
                    flush(disk.path / "one" / f"{number}", os.urandom(200_000))
            disk.reclaim()
            empty_machine(place)
            assert "the disk of sandboxes has failed" in disk.failure()
        finally:
            disk.close()


def test_kill_before_mount_leaves_no_device(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    with open(image, "wb") as file:
        file.truncate(64 * MIB)
    child = os.fork()
    if not child:
        with attached(image):
            os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, os.WUNTRACED)
    assert len(loop_devices(image)) == 1
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert loop_devices(image) == []


def test_concurrent_attaches_get_different_devices(tmp_path: Path) -> None:
    images = [tmp_path / str(number) for number in range(8)]

    def take(image: Path) -> Path:
        with open(image, "wb") as file:
            file.truncate(MIB)
        with attached(image) as device:
            every.wait()
            return device

    every = threading.Barrier(len(images))
    with ThreadPoolExecutor(len(images)) as pool:
        assert len(set(pool.map(take, images))) == len(images)


def test_used_disk_is_mounted_again(tmp_path: Path, quota_disk: QuotaDisk) -> None:
    """As by the next process of an owner whose sandboxes live on."""
    quota_disk.make("one", 64)
    again = QuotaDisk(tmp_path, PLACES)
    (again.path / "one" / "file").write_bytes(b"x")
    assert (quota_disk.path / "one" / "file").read_bytes() == b"x"
    assert len(loop_devices(tmp_path / "disk.img")) == 1
    again.close()
    assert (quota_disk.path / "one" / "file").read_bytes() == b"x"


def test_unused_disk_is_formatted_again(tmp_path: Path) -> None:
    """What lies on it is of nobody who lives, and was perhaps cut short by the end of the machine."""
    first = disk_with_limits(tmp_path)
    first.make("one", 64)
    (first.path / "one" / "file").write_bytes(b"x")
    first.close()
    second = QuotaDisk(tmp_path, PLACES)
    assert second.names() == set()
    second.close()


def test_missing_btrfs_programs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeUnavailable, match=r"mkfs\.btrfs is missing; install btrfs-progs"):
        QuotaDisk(tmp_path, PLACES)

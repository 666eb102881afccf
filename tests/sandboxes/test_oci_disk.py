"""Disks that bound what each sandbox writes, copy it at once, and leave no mount."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.oci.disk import Disk, PlainDisk, QuotaDisk
from sandboxes.runtimes.oci.loop import attached
from sandboxes.sandbox import MIB
from tests.services import missing


@pytest.fixture
def quota_disk(tmp_path: Path) -> Iterator[QuotaDisk]:
    try:
        disk = QuotaDisk(tmp_path)
    except RuntimeUnavailable as error:
        missing("a disk with limits", str(error))
        raise
    yield disk
    disk.close()


@pytest.fixture(params=["quota", "plain"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "plain":
        return PlainDisk(tmp_path / "disk")
    quota: QuotaDisk = request.getfixturevalue("quota_disk")
    return quota


def loop_devices(image: Path) -> list[str]:
    """Those that hold ``image``, by the kernel's word."""
    return [
        backing.parts[3]
        for backing in Path("/sys/block").glob("loop*/loop/backing_file")
        if backing.read_text().strip() == str(image)
    ]


def fill(path: Path, size_mib: int) -> None:
    with open(path, "wb", buffering=0) as file:
        for _ in range(size_mib):
            file.write(os.urandom(MIB))


def touch_many(place: Path, count: int) -> None:
    for number in range(count):
        (place / f"{number:060}").touch()


def test_a_copy_has_all_and_shares_nothing_afterwards(disk: Disk) -> None:
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


def test_what_is_removed_is_gone_and_may_be_removed_again(disk: Disk) -> None:
    disk.make("one", 64)
    (disk.path / "one" / "file").write_bytes(b"x")
    disk.remove("one")
    disk.remove("one")
    assert list(disk.path.iterdir()) == []
    disk.make("one", 64)
    assert list((disk.path / "one").iterdir()) == []


@pytest.mark.parametrize("copied", [False, True], ids=["made", "copied"])
def test_a_limit_holds_for_bytes_and_for_files_and_for_nobody_else(quota_disk: QuotaDisk, copied: bool) -> None:
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


def test_a_disk_is_mounted_nowhere_and_its_device_goes_with_it(tmp_path: Path) -> None:
    try:
        disk = QuotaDisk(tmp_path)
    except RuntimeUnavailable as error:
        missing("a disk with limits", str(error))
        raise
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert len(loop_devices(tmp_path / "disk.img")) == 1
    disk.close()
    assert loop_devices(tmp_path / "disk.img") == []


def test_whoever_is_killed_before_the_mount_leaves_no_device(tmp_path: Path) -> None:
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


def test_many_take_a_device_at_once_and_each_has_its_own(tmp_path: Path) -> None:
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


def test_a_disk_that_is_in_use_is_found_again(tmp_path: Path, quota_disk: QuotaDisk) -> None:
    """As by the next process of an owner whose sandboxes live on."""
    quota_disk.make("one", 64)
    again = QuotaDisk(tmp_path)
    (again.path / "one" / "file").write_bytes(b"x")
    assert (quota_disk.path / "one" / "file").read_bytes() == b"x"
    assert len(loop_devices(tmp_path / "disk.img")) == 1
    again.close()
    assert (quota_disk.path / "one" / "file").read_bytes() == b"x"


def test_a_disk_that_nobody_holds_is_made_anew(tmp_path: Path) -> None:
    """What lies on it is of nobody who lives, and was perhaps cut short by the end of the machine."""
    try:
        first = QuotaDisk(tmp_path)
    except RuntimeUnavailable as error:
        missing("a disk with limits", str(error))
        raise
    first.make("one", 64)
    (first.path / "one" / "file").write_bytes(b"x")
    first.close()
    second = QuotaDisk(tmp_path)
    assert second.names() == set()
    second.close()


def test_a_machine_without_the_programs_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeUnavailable, match=r"mkfs\.btrfs is missing; install btrfs-progs"):
        QuotaDisk(tmp_path)

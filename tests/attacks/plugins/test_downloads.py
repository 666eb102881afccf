"""A hostile sandbox wants the memory or the disk of the machine that downloads its files."""

import gzip
import io
import tarfile

import pytest

from farm.plugins.local_sandboxes import check_archive, read_whole
from sandboxes.errors import PathError
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.fake_sandbox import FakeSandbox

MIB = 1 << 20


def archive(files: int, size: int = 0) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for number in range(files):
            info = tarfile.TarInfo(str(number))
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
    return packed.getvalue()


def test_archive_of_kilobytes_does_not_fill_the_disk() -> None:
    packed = archive(files=4, size=16 * MIB)
    assert len(packed) < MIB
    with tarfile.open(fileobj=io.BytesIO(packed)) as naive:
        assert sum(member.size for member in naive) == 64 * MIB
    with pytest.raises(ValueError, match="unpacks to more than 33554432 bytes; download fewer files"):
        check_archive(packed, 32 * MIB, 1000)
    check_archive(packed, 65 * MIB, 1000)


def test_archive_of_many_empty_files_does_not_use_up_the_inodes() -> None:
    with pytest.raises(ValueError, match="holds more than 1000 files"):
        check_archive(archive(files=1001), 32 * MIB, 1000)
    check_archive(archive(files=1000), 32 * MIB, 1000)


@pytest.mark.parametrize(
    "packed",
    [b"", b"no archive", archive(1)[:-20], gzip.compress(b"no tar" * 200), gzip.compress(b"")[:9]],
    ids=["empty", "text", "cut", "no tar", "cut head"],
)
def test_what_is_no_archive_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        check_archive(packed, 32 * MIB, 1000)


async def test_file_that_is_too_long_is_not_read_to_its_end() -> None:
    sandbox = await FakeRuntime({"image": {"/f": b"x" * 5_000}}).create(SandboxSpec("image"))
    assert isinstance(sandbox, FakeSandbox)
    assert len(await read_whole(sandbox, "/f", 5_000)) == 5_000
    with pytest.raises(ValueError, match="/f has more than 4999 bytes"):
        await read_whole(sandbox, "/f", 4_999)
    with pytest.raises(PathError):
        await read_whole(sandbox, "/none", 5_000)
    await sandbox.remove()

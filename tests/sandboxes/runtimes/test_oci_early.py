"""What a sandbox writes that was copied once is written down before it is copied again."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandboxes import OciRuntime, RuntimeUnavailable, SandboxSpec
from sandboxes.interface import MIB
from sandboxes.runtimes.oci.storage.early_writeback import MIN_DIRTY_MIB, EarlyWriteback
from sandboxes.runtimes.oci.storage.quota_disk import IMAGE, TEMPORARY, QuotaDisk
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.conformance import WAIT_S
from tests.support.services import missing

LIMIT_MIB, WRITTEN_MIB = 256, 24
POLL_S = 0.01


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[QuotaDisk]:
    try:
        disk = QuotaDisk(tmp_path, 8)
    except RuntimeUnavailable as error:
        missing("a disk with limits", str(error))
        raise
    yield disk
    disk.close()


@pytest.fixture
async def early(disk: QuotaDisk) -> AsyncIterator[EarlyWriteback]:
    early = EarlyWriteback(lambda: disk)
    yield early
    await early.close()


def write(place: Path, name: str, size_mib: int = WRITTEN_MIB) -> bytes:
    content = os.urandom(size_mib * MIB)
    (place / name).write_bytes(content)
    return content


def test_flush_writes_data_and_leaves_no_snapshot(disk: QuotaDisk) -> None:
    disk.make("one", LIMIT_MIB)
    content = write(disk.path / "one", "file")
    assert disk.dirty_mib("one") > 0
    disk.flush("one")
    assert disk.dirty_mib("one") == 0
    assert (disk.path / "one" / "file").read_bytes() == content
    assert os.listdir(disk.path) == ["one"]


def test_flush_writes_only_one_sandbox(disk: QuotaDisk) -> None:
    disk.make("one", LIMIT_MIB)
    disk.make("other", LIMIT_MIB)
    write(disk.path / "other", "file")
    write(disk.path / "one", "file")
    disk.flush("one")
    assert disk.dirty_mib("one") == 0
    assert disk.dirty_mib("other") > 0  # but for what the kernel wrote of its own accord


def test_sandbox_near_limit_is_not_flushed(disk: QuotaDisk) -> None:
    """It may remove and write anew all that it may, as if it had never been copied."""
    disk.make("one", 2 * WRITTEN_MIB - 1)
    write(disk.path / "one", "file")
    before = disk.dirty_mib("one")
    disk.flush("one")
    assert disk.dirty_mib("one") == before


def test_flushed_and_removed_space_is_reusable(disk: QuotaDisk) -> None:
    disk.make("one", 64)
    for _ in range(8):
        write(disk.path / "one", "half", 30)
        disk.flush("one")
        (disk.path / "one" / "half").unlink()
        write(disk.path / "one", "all but half", 30)
        (disk.path / "one" / "all but half").unlink()


def test_flush_of_removed_sandbox_is_ignored(disk: QuotaDisk) -> None:
    assert disk.dirty_mib("nobody") == 0
    disk.flush("nobody")


def test_next_owner_removes_temporary_snapshots(tmp_path: Path, disk: QuotaDisk) -> None:
    disk.make("one", LIMIT_MIB)
    disk.copy("one", f"{TEMPORARY}one", LIMIT_MIB)
    assert disk.names() == {"one"}
    again = QuotaDisk(tmp_path, 8)
    try:
        assert os.listdir(again.path) == ["one"]
    finally:
        again.close()


async def test_only_copied_sandboxes_are_flushed(disk: QuotaDisk, early: EarlyWriteback) -> None:
    for name in ("copied", "ended"):
        disk.make(name, LIMIT_MIB)
        early.begin(name)
    early.end("ended")
    await asyncio.to_thread(write, disk.path / "ended", "file")
    await asyncio.to_thread(write, disk.path / "copied", "file")
    await until_written_down(disk, "copied")
    assert disk.dirty_mib("ended") > 0


async def test_disk_can_close_after_writeback_stops(disk: QuotaDisk, early: EarlyWriteback) -> None:
    disk.make("one", LIMIT_MIB)
    early.begin("one")
    await asyncio.to_thread(write, disk.path / "one", "file")
    await early.close()
    assert os.listdir(disk.path) == ["one"]


def same_disk(state_dir: Path) -> QuotaDisk:
    (image,) = state_dir.glob(f"owners/*/{IMAGE}")
    return QuotaDisk(image.parent, 8)


async def until_written_down(disk: QuotaDisk, name: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while disk.dirty_mib(name) >= MIN_DIRTY_MIB:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(POLL_S)


@pytest.mark.docker
@pytest.mark.parametrize("foreseen", [False, True])
async def test_forked_sandbox_has_little_dirty_data(
    toolbox: Toolbox, state_dir: Path, test_image: str, foreseen: bool
) -> None:
    runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox)
    try:
        async with runtime.scope(SandboxSpec(test_image, to_fork=foreseen)) as box:
            if not foreseen:
                await (await box.fork()).remove()
            content = os.urandom(WRITTEN_MIB * MIB)
            await box.write_file("/tmp/file", content)
            ours = await asyncio.to_thread(same_disk, state_dir)
            try:
                await until_written_down(ours, box.id)
            finally:
                ours.close()
            copy = await box.fork()
            assert await copy.read_file("/tmp/file") == content
            before = runtime._files.names()
            await runtime.reap()
            assert runtime._files.names() == before, "nothing of it was left to be reaped"
    finally:
        await runtime.close()

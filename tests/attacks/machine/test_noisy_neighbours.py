"""What slows the neighbours: waits for the machine's disk, and files that grow when they are copied."""

import asyncio
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from sandboxes import SandboxLimits, SandboxSpec, SnapshotError
from sandboxes.runtimes.docker.runtime import DockerRuntime
from tests.attacks.machine.conftest import ANSWER_S, SMALL, Scene
from tests.support.sandboxes.conformance import text

MIB = 2**20
ALLOWED, SPARSE = 96, 60
ATTEMPTS = 10

pytestmark = [pytest.mark.docker]


@pytest.fixture
def plain(docker_client: docker.DockerClient, test_image: str) -> Iterator[Container]:
    """A container without the farm's filter of system calls."""
    container = docker_client.containers.run(test_image, ["sleep", "1000"], detach=True, network_mode="none")
    yield container
    container.remove(force=True)


FS_IOC_FIEMAP, DELAYED = 0xC020660B, 0x4
"""An extent that has no place on the disk yet, of <linux/fiemap.h>."""


def is_unwritten(path: Path) -> bool:
    """Whether a file waits in memory to be written: its first extent has no place on the disk."""
    asked = bytearray(struct.pack("<QQIIII", 0, 1 << 40, 0, 0, 1, 0).ljust(88, b"\0"))
    with path.open("rb") as file:
        fcntl.ioctl(file, FS_IOC_FIEMAP, asked)
    return bool(int.from_bytes(asked[72:76], "little") & DELAYED)


async def test_no_sync_of_a_sandbox_reaches_the_machine(after_an_attack: Scene, tmp_path: Path) -> None:
    """The machine's own sync writes a new file down; a sandbox's never does. Others may, so it is tried again."""
    mine = tmp_path / "mine"
    for _ in range(ATTEMPTS):
        await asyncio.to_thread(mine.write_bytes, b"x" * MIB)
        result = await after_an_attack.attack("probe syncs > /dev/null; echo on", timeout_s=ANSWER_S)
        assert text(result) == "on\n"
        if is_unwritten(mine):
            break
        mine.unlink()
    else:
        pytest.fail("the file was written each time")
    await asyncio.to_thread(os.sync)
    assert not is_unwritten(mine)


async def test_sync_calls_report_success(after_an_attack: Scene) -> None:
    tried = results(text(await after_an_attack.attack("probe syncs")))
    assert {name for name, code in tried.items() if code} == {"pwritev2", "flags", "attributes"}


@pytest.mark.parametrize("either_runtime", ["docker"], indirect=True)
async def test_no_write_waits_for_dockers_disk(after_an_attack: Scene) -> None:
    """Under oci a sandbox's disk never waits for the machine's."""
    tried = results(text(await after_an_attack.attack("probe waits /srv")))
    assert tried.pop("none") == 0
    assert tried.pop("openat2") == errno.ENOSYS
    assert set(tried.values()) == {errno.EINVAL}


def results(lines: str) -> dict[str, int]:
    """Return the errno of each way that a program tried."""
    return {name: int(code) for name, code in map(str.split, lines.splitlines())}


def test_plain_container_write_waits_for_dockers_disk(plain: Container) -> None:
    """Such a write is on the disk when it returns; another waits in memory, unless others sync the machine's disks."""
    for _ in range(ATTEMPTS):
        code, output = plain.exec_run(["probe", "waits", "/srv"])
        assert code == 0
        assert isinstance(output, bytes)
        tried = results(output.decode())
        assert set(tried.values()) == {0}
        waiting = {name for name in tried if is_unwritten(upper(plain) / "srv" / name)}
        assert waiting <= {"none"}
        if waiting:
            return
        plain.exec_run(["sh", "-c", "rm /srv/*"])
    pytest.fail("the file was written each time")


def test_sparse_file_of_a_plain_container_becomes_real(plain: Container) -> None:
    sparse = upper(plain) / "srv/1"
    plain.exec_run(["dd", "if=/dev/zero", "of=/srv/1", "bs=1", "count=1", f"seek={SPARSE}M"])
    assert (sparse.stat().st_size > SPARSE * MIB, blocks_bytes(sparse) < MIB) == (True, True)
    committed = plain.commit()
    try:
        assert blocks_bytes(Path(committed.attrs["GraphDriver"]["Data"]["UpperDir"]) / "srv/1") >= SPARSE * MIB
    finally:
        committed.remove(force=True)


def upper(container: Container) -> Path:
    """Return where the daemon keeps what a container has written."""
    container.reload()
    return Path(container.attrs["GraphDriver"]["Data"]["UpperDir"])


def blocks_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


async def test_snapshot_of_large_sparse_files_is_refused(docker_runtime: DockerRuntime, test_image: str) -> None:
    """Three of 60 MiB hold nothing, and would be 180 MiB of the daemon's disk."""
    limits = SandboxLimits(memory_mib=SMALL.memory_mib, file_size_mib=SPARSE + 1, disk_mib=ALLOWED)
    async with docker_runtime.scope(SandboxSpec(test_image, limits=limits)) as sandbox:
        holes = "for i in 1 2 3; do dd if=/dev/zero of=/srv/$i bs=1 count=1 seek=60M 2>/dev/null; done"
        assert (await sandbox.exec(["sh", "-c", holes], timeout_s=ANSWER_S)).exit_code == 0
        for copy in (sandbox.snapshot, sandbox.fork):
            with pytest.raises(SnapshotError, match="180 MiB, holes included, of 96 allowed") as refused:
                await copy()
            assert refused.value.unfit
        await sandbox.remove_path("/srv/3")
        await sandbox.remove_path("/srv/2")
        fork = await sandbox.fork()
        assert (await fork.stat("/srv/1")).size > SPARSE * MIB
        await fork.remove()

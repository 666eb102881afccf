"""Forks of sandboxes that do not want to be copied, and what a copy may not get around."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest

from sandboxes import (
    DockerRuntime,
    OciRuntime,
    Runtime,
    RuntimeUnavailable,
    Sandbox,
    SandboxLimits,
    SandboxSpec,
    SnapshotError,
)
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.conformance import WAIT_S, living, text, until_there
from tests.support.services import missing

pytestmark = pytest.mark.docker

LONG_S = 300.0


@pytest.fixture(params=["docker", "oci"])
def runtime(request: pytest.FixtureRequest) -> DockerRuntime | OciRuntime:
    found: DockerRuntime | OciRuntime = request.getfixturevalue(f"{request.param}_runtime")
    return found


@pytest.fixture
async def without_limits(
    docker_client: docker.DockerClient, toolbox: Toolbox, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OciRuntime]:
    """The oci runtime on a machine without mkfs.btrfs, where a copy is a copy of every byte."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    try:
        runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox)
    except RuntimeUnavailable as error:
        missing("the oci runtime", str(error))
        raise
    assert any("limits" in lack for lack in runtime.degraded)
    yield runtime
    await runtime.close()


async def probe(sandbox: Sandbox, *arguments: str) -> str:
    return text(await sandbox.exec(["/bin/probe", *arguments], timeout_s=LONG_S)).strip()


async def at_work(sandbox: Sandbox) -> bool:
    return text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


async def test_deep_and_crowded_trees_are_forked(oci_runtime: OciRuntime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        assert await probe(sandbox, "dig", "/tmp/deep", "100000") == "100000"
        assert await probe(sandbox, "crowd", "/tmp/many", "100000") == "100000"
        fork = await sandbox.fork()
        assert (await fork.stat("/tmp/many/99000/f99999")).size == 0
        assert await at_work(fork)
        assert await at_work(sandbox)
        await fork.remove()


async def test_failed_copy_leaves_source_running(without_limits: OciRuntime, test_image: str) -> None:
    async with without_limits.scope(SandboxSpec(test_image)) as sandbox:
        await sandbox.write_file("/tmp/kept", b"1")
        fork = await sandbox.fork()
        assert await fork.read_file("/tmp/kept") == b"1"
        await fork.remove()
        assert await probe(sandbox, "dig", "/tmp/deep", "2500") == "2500"
        for copy in (sandbox.snapshot, sandbox.fork):
            with pytest.raises(SnapshotError, match="cannot be copied"):
                await copy()
            assert await at_work(sandbox)
        assert await living(without_limits) == {sandbox.id}


async def test_undeletable_sandbox_is_left_to_reaper(without_limits: OciRuntime, test_image: str) -> None:
    sandbox = await without_limits.create(SandboxSpec(test_image))
    held = without_limits._files.sandbox_dir(sandbox.id) / "upper" / "held"
    held.mkdir()
    assert await (await asyncio.create_subprocess_exec("mount", "-t", "tmpfs", "farm-test", held)).wait() == 0
    try:
        with pytest.raises(OSError, match="cannot be removed"):
            await sandbox.remove()
    finally:
        assert await (await asyncio.create_subprocess_exec("umount", held)).wait() == 0
    assert sandbox.id in without_limits._files.names()
    await without_limits.reap()
    assert without_limits._files.names() == set()


async def test_fork_copies_files_of_one_moment(runtime: Runtime, test_image: str) -> None:
    """A writer that puts each number into one file, and then into another."""
    count = "i=0; while :; do i=$((i+1)); echo $i > x; mv x first; echo $i > x; mv x second; done"
    async with runtime.scope(SandboxSpec(test_image, workdir="/tmp")) as sandbox:
        counting = asyncio.create_task(sandbox.exec(["sh", "-c", count], timeout_s=LONG_S))
        await until_there(sandbox, "second")
        seen = []
        for _ in range(5):
            fork = await sandbox.fork()
            first, second = int(await fork.read_file("first")), int(await fork.read_file("second"))
            assert first - second in (0, 1)
            seen.append(first)
            await fork.remove()
        assert sorted(set(seen)) == seen, "the writer went on in between"
        await sandbox.kill_all()
        await counting


async def test_fork_bomb_is_frozen_and_copied(runtime: Runtime, test_image: str) -> None:
    async with runtime.scope(SandboxSpec(test_image, limits=SandboxLimits(pids=64))) as sandbox:
        bomb = asyncio.create_task(
            sandbox.exec(["sh", "-c", "f() { f & f & }; echo > /tmp/begun; f"], timeout_s=LONG_S)
        )
        await until_there(sandbox, "/tmp/begun")
        fork = await sandbox.fork()
        assert await fork.read_file("/tmp/begun") == b"\n"
        await fork.remove()
        await sandbox.kill_all()
        await bomb
        assert await at_work(sandbox)


async def test_fork_has_the_limits_of_its_source(runtime: Runtime, test_image: str) -> None:
    limits = SandboxLimits(memory_mib=128, pids=32, open_files=64)
    async with runtime.scope(SandboxSpec(test_image, limits=limits)) as sandbox:
        fork = await sandbox.fork()
        assert int(await probe(fork, "forks")) < 32
        await fork.kill_all()
        assert int(await probe(fork, "files")) < 64
        hungry = await fork.exec(["/bin/probe", "memory", "512"], timeout_s=LONG_S)
        assert hungry.exit_code == 128 + 9
        await fork.remove()
        assert await at_work(sandbox)


async def test_fork_of_full_disk_has_own_quota(oci_runtime: OciRuntime, test_image: str) -> None:
    full = ["dd", "if=/dev/urandom", "of=/big", "bs=1048576", "count=64"]
    async with oci_runtime.scope(SandboxSpec(test_image, limits=SandboxLimits(disk_mib=32))) as sandbox:
        assert (await sandbox.exec(full, timeout_s=WAIT_S)).exit_code == 1
        fork = await sandbox.fork()
        size = (await fork.stat("/big")).size
        assert size == (await sandbox.stat("/big")).size
        full[2] = "of=/more"
        again = await fork.exec(full, timeout_s=WAIT_S)
        assert again.exit_code == 1
        assert b"quota" in again.stderr.head.lower()
        assert (await fork.stat("/more")).size <= 32 * 2**20
        await fork.remove()


async def test_snapshot_of_ended_sandbox_succeeds(runtime: Runtime, test_image: str, state_dir: Path) -> None:
    async with runtime.scope(SandboxSpec(test_image)) as sandbox:
        await sandbox.write_file("/tmp/kept", b"1")
        assert isinstance(runtime, DockerRuntime | OciRuntime)
        os.kill(await runtime.first_pid(sandbox.id), signal.SIGKILL)
        async with await sandbox.snapshot() as snapshot, runtime.scope(sandbox.spec, base=snapshot) as later:
            assert await later.read_file("/tmp/kept") == b"1"


@pytest.mark.parametrize(
    "spoil", ["rm -r /srv/here", "rmdir /srv/here; echo > /srv/here", "mv /srv /x; ln -s /.farm /srv"]
)
async def test_fork_of_unbootable_files_is_snapshot_error(runtime: Runtime, test_image: str, spoil: str) -> None:
    async with runtime.scope(SandboxSpec(test_image, workdir="/srv/here")) as sandbox:
        assert (await sandbox.exec(["sh", "-c", spoil], cwd="/", timeout_s=WAIT_S)).exit_code == 0
        with pytest.raises(SnapshotError, match=r"on copied files: .*/srv/here"):
            await sandbox.fork()
        assert await living(runtime) == {sandbox.id}
        assert text(await sandbox.exec(["echo", "on"], cwd="/", timeout_s=WAIT_S)) == "on\n"


async def test_symlinked_workdir_of_fork_stays_inside(runtime: Runtime, test_image: str) -> None:
    spec = SandboxSpec(test_image, workdir="/srv/here")
    async with runtime.scope(spec) as sandbox:
        await sandbox.exec(["sh", "-c", "rmdir /srv/here; ln -s /proc/1/cwd /srv/here"], cwd="/", timeout_s=WAIT_S)
        try:
            fork = await sandbox.fork()
        except SnapshotError:
            return
        assert text(await fork.exec(["sh", "-c", "pwd -P; cat /etc/motd"], timeout_s=WAIT_S)).endswith("hello\n")
        await fork.remove()


@pytest.mark.xdist_group("volumes")
async def test_docker_fork_with_volume_is_refused(
    docker_runtime: DockerRuntime, docker_client: docker.DockerClient, test_image: str
) -> None:
    with_volume = f"{test_image}-volume"
    container = docker_client.containers.create(test_image, "true")
    container.commit(*with_volume.split(":"), changes='VOLUME ["/data"]')
    container.remove()
    try:
        async with docker_runtime.scope(SandboxSpec(with_volume)) as sandbox:
            with pytest.raises(SnapshotError, match="/data"):
                await sandbox.fork()
            assert await at_work(sandbox)
    finally:
        docker_client.images.remove(with_volume)


def snapshot_images(client: docker.DockerClient, state_dir: Path) -> set[str]:
    labels = ["farm.snapshot", f"farm.state_dir={state_dir}"]
    return {str(image.id) for image in client.images.list(all=True, filters={"label": labels})}


async def test_snapshot_image_stays_until_last_user_is_removed(
    docker_runtime: DockerRuntime, docker_client: docker.DockerClient, test_image: str, state_dir: Path
) -> None:
    async with docker_runtime.scope(SandboxSpec(test_image)) as sandbox:
        snapshot = await sandbox.snapshot()
        child = await docker_runtime.create(sandbox.spec, base=snapshot)
        grandchild = await child.fork()
        assert len(snapshot_images(docker_client, state_dir)) == 2
        await snapshot.remove()
        await child.remove()
        assert len(snapshot_images(docker_client, state_dir)) == 2
        await docker_runtime.reap()
        assert await at_work(grandchild)
        await grandchild.remove()
        assert snapshot_images(docker_client, state_dir) == set()


async def test_closed_runtime_leaves_no_snapshot(
    docker_client: docker.DockerClient, toolbox: Toolbox, state_dir: Path, test_image: str
) -> None:
    runtime = await DockerRuntime.open(state_dir=state_dir, toolbox=toolbox)
    sandbox = await runtime.create(SandboxSpec(test_image))
    await sandbox.snapshot()
    await (await sandbox.fork()).fork()
    assert len(snapshot_images(docker_client, state_dir)) == 3
    await runtime.close()
    assert snapshot_images(docker_client, state_dir) == set()


async def test_removed_snapshot_frees_its_directory(oci_runtime: OciRuntime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        before = oci_runtime._files.names()
        async with await sandbox.snapshot() as snapshot:
            assert oci_runtime._files.names() - before == {snapshot.id}
            await oci_runtime.reap()
            async with oci_runtime.scope(sandbox.spec, base=snapshot) as box:
                assert await at_work(box)
        assert oci_runtime._files.names() == before

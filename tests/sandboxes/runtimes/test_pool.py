"""Warm pools: ready before they are asked for, fresh as a boot, never the wrong one, and nothing left of them."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from sandboxes import (
    BootError,
    FakeRuntime,
    ImageError,
    OciRuntime,
    Sandbox,
    SandboxLimits,
    SandboxSpec,
    SpecError,
    WarmPool,
)
from sandboxes.ownership.labels import container_name
from sandboxes.runtimes.docker.runtime import DockerRuntime
from sandboxes.toolserver.toolbox import Toolbox
from sandboxes.warm_pool import PAUSE_S, RETRY_S, SURPLUS_S
from tests.support.docker_daemon import docker_daemon
from tests.support.images import busybox_image
from tests.support.sandboxes.conformance import living, text
from tests.support.sandboxes.pooling import WAIT_S, pooled, until_ready

IMAGE = "farm-test/fake:1"
SPEC = SandboxSpec(IMAGE, labels={"run": "1"})
FILES = {"/etc/motd": b"hello\n", "/srv/here/": b""}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.fixture
def images() -> dict[str, Mapping[str, bytes]]:
    return {IMAGE: FILES}


@pytest.fixture
def fake(images: dict[str, Mapping[str, bytes]]) -> FakeRuntime:
    return FakeRuntime(images)


@pytest.fixture
async def pool(fake: FakeRuntime) -> AsyncIterator[WarmPool]:
    async with pooled(fake, SPEC) as pool:
        yield pool


# What is handed out


async def test_pool_without_reservation_starts_nothing(fake: FakeRuntime) -> None:
    pool = WarmPool(fake)
    async with pool.scope(SPEC):
        assert len(fake.sandboxes) == 1
        assert len(asyncio.all_tasks()) == 1
    assert pool.handed_out == 0
    await pool.close()


async def test_warm_sandbox_is_handed_out_and_replaced(fake: FakeRuntime, pool: WarmPool) -> None:
    before = set(fake.sandboxes)
    mine = SandboxSpec(IMAGE, labels={"run": "2"})
    async with pool.scope(mine) as sandbox:
        assert sandbox.id in before
        assert sandbox.spec == mine
        assert pool.handed_out == 1
        await until_ready(pool, SPEC, 2)
        assert len(fake.sandboxes) == 3


@pytest.mark.parametrize(
    "other",
    [
        replace(SPEC, workdir="/srv/here"),
        replace(SPEC, env={"A": "1"}),
        replace(SPEC, limits=SandboxLimits(memory_mib=64)),
        replace(SPEC, egress=("example.org",)),
    ],
)
async def test_spec_differing_beyond_labels_is_booted(fake: FakeRuntime, pool: WarmPool, other: SandboxSpec) -> None:
    before = set(fake.sandboxes)
    async with pool.scope(other) as sandbox:
        assert sandbox.id not in before
        assert sandbox.spec == other


async def test_order_of_variables_does_not_matter(fake: FakeRuntime) -> None:
    async with pooled(fake, replace(SPEC, env={"A": "1", "B": "2"})) as pool:
        await (await pool.create(replace(SPEC, env={"B": "2", "A": "1"}))).remove()
        assert pool.handed_out == 1


async def test_moved_image_name_gets_new_image(
    fake: FakeRuntime, pool: WarmPool, images: dict[str, Mapping[str, bytes]]
) -> None:
    old = set(fake.sandboxes)
    images[IMAGE] = {"/etc/motd": b"changed\n"}
    async with pool.scope(SPEC) as sandbox:
        assert await sandbox.read_file("/etc/motd") == b"changed\n"
        assert pool.handed_out == 0
        await until_ready(pool, SPEC, 2)
        await settled()
        assert not old & set(fake.sandboxes), "what was made of the old image stays"
    async with pool.scope(SPEC) as sandbox:
        assert await sandbox.read_file("/etc/motd") == b"changed\n"
        assert pool.handed_out == 1


async def test_removed_image_name_is_an_error(pool: WarmPool, images: dict[str, Mapping[str, bytes]]) -> None:
    del images[IMAGE]
    with pytest.raises(ImageError):
        await pool.create(SPEC)


async def test_dead_sandbox_is_skipped_and_removed() -> None:
    fake = FakeRuntime({IMAGE: FILES}, lifetimes=[1, None])
    async with pooled(fake, SPEC) as pool:
        dead, well = fake.sandboxes
        async with pool.scope(SPEC) as sandbox:
            assert sandbox.id == well
            await settled()
            assert dead not in fake.sandboxes


async def test_sandbox_is_booted_if_all_are_dead() -> None:
    fake = FakeRuntime({IMAGE: FILES}, lifetimes=[1, 1])
    async with pooled(fake, SPEC) as pool:
        dead = set(fake.sandboxes)
        async with pool.scope(SPEC) as sandbox:
            assert sandbox.id not in dead
            assert await sandbox.read_file("/etc/motd") == b"hello\n"
            assert pool.handed_out == 0


async def test_invalid_spec_cannot_be_reserved(fake: FakeRuntime) -> None:
    pool = WarmPool(fake)
    with pytest.raises(SpecError), pool.reserve(SandboxSpec("")):
        pass


# How many are kept


async def test_reservations_add_up_and_end(fake: FakeRuntime) -> None:
    clock = Clock()
    pool = WarmPool(fake, shortage=lambda: "", clock=clock)
    with pool.reserve(SPEC):
        with pool.reserve(SPEC, 2):
            await until_ready(pool, SPEC, 3)
        await settled()
        assert pool.ready(SPEC) == 3, "one just given up is often wanted again"
        clock.now += SURPLUS_S
        with pool.reserve(SPEC, 0):  # so that the pool looks
            await until_ready(pool, SPEC, 1)
    await settled()
    clock.now += SURPLUS_S
    with pool.reserve(SPEC, 0):
        await until_ready(pool, SPEC, 0)
    await settled()
    assert not fake.sandboxes
    assert len(asyncio.all_tasks()) == 1, "an empty pool does nothing"
    await pool.close()


async def test_shortage_removes_all_warm_sandboxes(fake: FakeRuntime) -> None:
    clock, shortage = Clock(), [""]
    pool = WarmPool(fake, shortage=lambda: shortage[0], clock=clock)
    with pool.reserve(SPEC, 2):
        await until_ready(pool, SPEC, 2)
        held = await pool.create(SPEC)
        await until_ready(pool, SPEC, 2)
        shortage[0] = "memory is shortage"
        clock.now += 1.0
        with pool.reserve(SPEC):
            await until_ready(pool, SPEC, 0)
        await settled()
        assert list(fake.sandboxes) == [held.id], "what somebody holds stays"
        shortage[0] = ""
        clock.now += PAUSE_S
        with pool.reserve(SPEC, 0):
            await until_ready(pool, SPEC, 2)
    await pool.close()


async def test_release_images_removes_warm_sandboxes(fake: FakeRuntime, pool: WarmPool) -> None:
    await pool.release_images()
    assert not fake.sandboxes
    await settled()
    assert pool.ready(SPEC) == 0, "its like would hold the image again"


async def test_failed_boot_is_retried_with_backoff() -> None:
    clock = Clock()
    fake = FakeRuntime({IMAGE: FILES}, boot_errors=[BootError("no")] * 4)
    pool = WarmPool(fake, shortage=lambda: "", clock=clock)
    with pool.reserve(SPEC):
        await settled()
        for wait_s in (RETRY_S, 2 * RETRY_S):
            clock.now += wait_s - 0.1
            with pool.reserve(SPEC, 0):
                await settled()
            with contextlib.suppress(BootError):  # not yet tried: this is the next of the errors
                await (await pool.create(SPEC)).remove()
                pytest.fail("the pool tried too early")
            clock.now += 0.1
            with pool.reserve(SPEC, 0):
                await settled()
        await until_ready(pool, SPEC, 1)
    await pool.close()


# Under attack


async def test_create_cancelled_at_any_step_loses_nothing(fake: FakeRuntime, pool: WarmPool) -> None:
    for steps in range(30):
        task = asyncio.create_task(pool.create(SPEC))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).remove()
        await until_ready(pool, SPEC, 2)
        await settled()
        assert len(fake.sandboxes) == 2


async def churn(pool: WarmPool, spec: SandboxSpec, *, creates: int, rng: random.Random) -> int:
    """So many at once, half of them cancelled at some moment, beside wants that come and go; how many came through."""
    through = 0

    async def one() -> None:
        nonlocal through
        async with pool.scope(spec) as sandbox:
            assert text(await sandbox.exec(["echo", "here"], timeout_s=WAIT_S)) == "here\n"
            assert await sandbox.walk("/tmp") == []
            await sandbox.write_file("/tmp/mine", b"1")
            through += 1

    async def want() -> None:
        for _ in range(creates // 4):
            with pool.reserve(spec, rng.randrange(3)):
                await asyncio.sleep(rng.random() * 0.02)

    wants = asyncio.create_task(want())
    tasks = [asyncio.create_task(one()) for _ in range(creates)]
    for task in rng.sample(tasks, creates // 2):
        await asyncio.sleep(rng.random() * 0.01)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await wants
    assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
    return through


async def test_half_cancelled_creates_leave_no_fake_sandboxes(fake: FakeRuntime) -> None:
    files = {**FILES, "/tmp/": b""}
    fake = FakeRuntime({IMAGE: files})
    async with pooled(fake, SPEC, count=5) as pool:
        through = await churn(pool, SPEC, creates=100, rng=random.Random(1))
        assert through >= 50
        assert await living(pool) == set()
        assert pool.handed_out
    assert not fake.sandboxes


@pytest.mark.docker
class TestOci:
    @pytest.fixture
    def spec(self, test_image: str) -> SandboxSpec:
        return SandboxSpec(test_image, limits=SandboxLimits(memory_mib=64))

    @pytest.fixture
    async def pool(self, oci_runtime: OciRuntime, spec: SandboxSpec) -> AsyncIterator[WarmPool]:
        async with pooled(oci_runtime, spec) as pool:
            yield pool

    async def test_half_cancelled_creates_leave_no_oci_sandboxes(
        self, oci_runtime: OciRuntime, pool: WarmPool, spec: SandboxSpec
    ) -> None:
        assert await churn(pool, spec, creates=100, rng=random.Random(2)) >= 50
        assert await living(pool) == set()
        await pool.close()
        assert await living(oci_runtime) == set()

    async def test_warm_sandbox_equals_freshly_booted_sandbox(
        self, oci_runtime: OciRuntime, pool: WarmPool, spec: SandboxSpec
    ) -> None:
        async with oci_runtime.scope(spec) as booted, pool.scope(spec) as warm:
            assert pool.handed_out == 1
            await booted.shell(":", timeout_s=WAIT_S)  # whose shell begins with its first command
            assert await _all_of(warm) == await _all_of(booted)

    async def test_killed_warm_sandbox_is_not_handed_out(
        self, oci_runtime: OciRuntime, pool: WarmPool, spec: SandboxSpec
    ) -> None:
        dead = await living(oci_runtime)
        for sandbox_id in dead:
            os.kill(await oci_runtime.first_pid(sandbox_id), signal.SIGKILL)
        async with pool.scope(spec) as sandbox:
            assert sandbox.id not in dead
            assert text(await sandbox.exec(["echo", "here"], timeout_s=WAIT_S)) == "here\n"
            await until_ready(pool, spec, 2)
            async with asyncio.timeout(WAIT_S):
                while dead & await living(oci_runtime):  # they go in their own time
                    pass

    async def test_stopped_warm_sandbox_is_not_handed_out(
        self, oci_runtime: OciRuntime, pool: WarmPool, spec: SandboxSpec
    ) -> None:
        mute = await living(oci_runtime)
        for sandbox_id in mute:
            os.kill(await oci_runtime.first_pid(sandbox_id), signal.SIGSTOP)
        async with pool.scope(spec) as sandbox:
            assert sandbox.id not in mute

    async def test_create_after_image_removal_fails(
        self, oci_runtime: OciRuntime, docker_client: docker.DockerClient, spec: SandboxSpec
    ) -> None:
        name = f"{spec.image}-going"
        docker_client.images.get(spec.image).tag(*name.split(":"))
        going = replace(spec, image=name)
        async with pooled(oci_runtime, going) as pool:
            docker_client.images.remove(name)
            with pytest.raises(ImageError):
                await pool.create(going)
            docker_client.images.get(spec.image).tag(*name.split(":"))
            await (await pool.create(going)).remove()
        docker_client.images.remove(name)

    async def test_pool_survives_death_of_starter(
        self, oci_runtime: OciRuntime, pool: WarmPool, spec: SandboxSpec
    ) -> None:
        """What is ready is of use still, and for what comes next there is another."""
        (starter,) = _children("starter")
        os.kill(starter, signal.SIGKILL)
        await oci_runtime._supervisor.starter._process.wait()
        for _ in range(4):
            sandbox = await pool.create(spec)
            assert text(await sandbox.exec(["echo", "here"], timeout_s=WAIT_S)) == "here\n"
        assert starter not in _children("starter")


@pytest.mark.docker
async def test_silent_daemon_does_not_block_warm_sandboxes(toolbox: Toolbox, state_dir: Path) -> None:
    with docker_daemon({}) as address, contextlib.ExitStack() as images:
        client = docker.DockerClient(base_url=address, version="auto")
        images.enter_context(contextlib.closing(client))
        spec = SandboxSpec(images.enter_context(contextlib.contextmanager(busybox_image)(client)))
        runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, docker_host=address)
        daemon = int(Path(address.removeprefix("unix://")).with_name("pid").read_text())
        async with pooled(runtime, spec) as pool:
            os.kill(daemon, signal.SIGSTOP)
            try:
                for _ in range(2):
                    await (await pool.create(spec)).remove()
                assert pool.handed_out == 2
            finally:
                os.kill(daemon, signal.SIGCONT)


@pytest.mark.docker
async def test_removed_container_is_not_handed_out(
    docker_client: docker.DockerClient, toolbox: Toolbox, state_dir: Path, test_image: str
) -> None:
    spec = SandboxSpec(test_image)
    runtime = await DockerRuntime.open(state_dir=state_dir, toolbox=toolbox)
    async with pooled(runtime, spec) as pool:
        for sandbox_id in await living(runtime):
            docker_client.containers.get(container_name(sandbox_id)).remove(force=True, v=True)
        async with pool.scope(spec) as sandbox:
            assert text(await sandbox.exec(["echo", "here"], timeout_s=WAIT_S)) == "here\n"
            assert pool.handed_out == 0
            await until_ready(pool, spec, 2)
            await (await pool.create(spec)).remove()
            assert pool.handed_out == 1


async def _all_of(sandbox: Sandbox) -> dict[str, object]:
    """All that can be seen of a sandbox from inside, but what no two share."""
    files = [(e.path, e.kind, e.mode, e.size) for e in await sandbox.walk("/", prune=["proc", "sys", "dev"])]
    processes = text(await sandbox.exec(["ps", "-o", "args"], timeout_s=WAIT_S))
    environment = text(await sandbox.exec(["env"], timeout_s=WAIT_S))
    shell = text(await sandbox.shell("set; pwd; ulimit -a", timeout_s=WAIT_S))
    mounts = [line.split()[4:6] for line in (await sandbox.read_file("/proc/self/mountinfo")).splitlines()]
    return {"files": files, "processes": processes, "environment": environment, "shell": shell, "mounts": mounts}


def _children(name: str) -> list[int]:
    """Of this process, by the name of their program."""
    found = []
    for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        if Path(f"/proc/{pid}/comm").read_text().strip() == name:
            found.append(int(pid))
    return found

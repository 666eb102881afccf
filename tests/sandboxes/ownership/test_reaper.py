"""Two ends of life: whatever a dead owner leaves goes, whatever a living one holds stays.

The reaper works on the whole machine, and so do those of others who use it: a container that is due may be taken by
any of them, so what is asked is that it goes, not who did it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandboxes import OciRuntime, RuntimeUnavailable, SandboxSpec, SpecError
from sandboxes.cgroups.cgroups import Cgroups, find_hierarchies
from sandboxes.docker_engine.api import Engine
from sandboxes.ownership.owner import LOCK_RETRY_S, LOCK_TRIES, Identity, Owner, bury_if_dead, group_of, owner_names
from sandboxes.runtimes.reaper import reap
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.outside import EitherRuntime, backing_files
from tests.support.sandboxes.conformance import WAIT_S, living
from tests.support.sandboxes.serving import eventually

OWNER = """
import asyncio, sys
from pathlib import Path
from sandboxes import DockerRuntime, OciRuntime, SandboxSpec
from sandboxes.toolserver.toolbox import Toolbox

async def main(kind, state_dir, owner, toolbox, image, grace_s):
    made = {"docker": DockerRuntime, "oci": OciRuntime}[kind]
    toolbox = Toolbox(Path(toolbox))
    runtime = await made.open(state_dir=Path(state_dir), owner=owner, toolbox=toolbox, grace_s=float(grace_s))
    print("open", flush=True)
    while True:
        print((await runtime.create(SandboxSpec(image))).id, flush=True)
        if sys.stdin.readline() != "more\\n":
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


class OwnerProcess:
    """Another process that holds sandboxes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, kind: str, state_dir: Path, owner: str, toolbox: Toolbox, image: str, *, grace_s: float = 0
    ) -> "OwnerProcess":
        arguments = (kind, str(state_dir), owner, str(toolbox.path), image, str(grace_s))
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, *arguments, stdin=pipe, stdout=pipe)
        )

    async def line(self) -> str:
        assert self._process.stdout
        return (await asyncio.wait_for(self._process.stdout.readline(), WAIT_S)).decode().strip()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


async def sandboxes(state_dir: Path) -> set[str]:
    """Of any owner of this state directory, on either runtime, in any state."""
    engine = Engine()
    await engine.connect()
    try:
        containers = await engine.containers(f"farm.state_dir={state_dir}")
    finally:
        await engine.close()
    groups = [Cgroups(find_hierarchies(), group_of(Identity.here(state_dir, name))) for name in owner_names(state_dir)]
    found = {container.labels["farm.sandbox"] for container in containers if container.labels["farm.sandbox"]}
    return found.union(*(group.names() for group in groups))


async def until_gone(runtime: EitherRuntime, state_dir: Path, owner: str) -> None:
    """The daemon may finish a creation whose asker is dead: it is found at one of the next rounds."""
    async with asyncio.timeout(WAIT_S):
        while owner in owner_names(state_dir) or await sandboxes(state_dir):
            await runtime.reap()


@pytest.fixture
async def other(
    either_runtime: EitherRuntime, state_dir: Path, toolbox: Toolbox, test_image: str
) -> AsyncIterator[OwnerProcess]:
    process = await OwnerProcess.start(either_runtime.name, state_dir, "other", toolbox, test_image)
    assert await process.line() == "open"
    yield process
    await process.kill()


@pytest.mark.docker
async def test_leftovers_of_killed_owner_are_removed(
    either_runtime: EitherRuntime, state_dir: Path, other: OwnerProcess
) -> None:
    left = await other.line()
    await either_runtime.reap()
    assert await sandboxes(state_dir) == {left}
    await other.kill()
    await until_gone(either_runtime, state_dir, "other")


@pytest.mark.docker
async def test_owner_killed_during_boot_leaves_nothing(
    either_runtime: EitherRuntime, state_dir: Path, other: OwnerProcess
) -> None:
    await other.kill()
    await until_gone(either_runtime, state_dir, "other")


@pytest.mark.docker
async def test_sandbox_during_boot_is_not_reaped(either_runtime: EitherRuntime, test_image: str) -> None:
    """Boots and reapers at the same time, again and again."""
    stop = asyncio.Event()

    async def keep_reaping() -> None:
        while not stop.is_set():
            await either_runtime.reap()

    reapers = [asyncio.create_task(keep_reaping()) for _ in range(2)]
    made = await asyncio.gather(*(either_runtime.create(SandboxSpec(test_image)) for _ in range(6)))
    stop.set()
    await asyncio.gather(*reapers)
    assert await living(either_runtime) == {sandbox.id for sandbox in made}
    for sandbox in made:
        assert (await sandbox.exec(["true"], timeout_s=WAIT_S)).exit_code == 0


@pytest.mark.docker
async def test_concurrent_reapers_do_not_fail(
    either_runtime: EitherRuntime, state_dir: Path, other: OwnerProcess
) -> None:
    await other.line()
    await other.kill()
    engines = [Engine() for _ in range(4)]
    try:
        for engine in engines:
            await engine.connect()
        await asyncio.gather(*(reap(engine, state_dir) for engine in engines))
    finally:
        for engine in engines:
            await engine.close()
    await until_gone(either_runtime, state_dir, "other")


@pytest.mark.docker
async def test_returning_owner_finds_its_sandboxes(
    either_runtime: EitherRuntime, state_dir: Path, toolbox: Toolbox, test_image: str
) -> None:
    """Within its grace: reapers of other tests go over the whole machine meanwhile."""
    other = await OwnerProcess.start(either_runtime.name, state_dir, "other", toolbox, test_image, grace_s=WAIT_S)
    assert await other.line() == "open"
    left = await other.line()
    with pytest.raises(RuntimeUnavailable, match="is claimed by another process"):
        await type(either_runtime).open(state_dir=state_dir, owner="other", toolbox=toolbox)
    await other.kill()
    runtime = await type(either_runtime).open(state_dir=state_dir, owner="other", toolbox=toolbox)
    try:
        assert await living(runtime) == {left}
        assert await runtime.reap() >= 1
        assert await living(runtime) == set()
    finally:
        await runtime.close()
    assert "other" not in owner_names(state_dir)


@pytest.mark.docker
async def test_close_leaves_nothing(
    either_runtime: EitherRuntime, toolbox: Toolbox, test_image: str, state_dir: Path
) -> None:
    before = await sandboxes(state_dir)
    runtime = await type(either_runtime).open(state_dir=state_dir, owner="other", toolbox=toolbox)
    await asyncio.gather(*(runtime.create(SandboxSpec(test_image)) for _ in range(3)))
    assert len(await sandboxes(state_dir) - before) == 3
    await runtime.close()
    assert await sandboxes(state_dir) == before
    assert "other" not in owner_names(state_dir)


@pytest.mark.docker
async def test_disk_of_dead_owner_is_removed(
    oci_runtime: OciRuntime, state_dir: Path, toolbox: Toolbox, test_image: str
) -> None:
    process = await OwnerProcess.start("oci", state_dir, "other", toolbox, test_image)
    for _ in ("open", "a sandbox"):
        await process.line()
    disk = state_dir / "owners" / "other" / "disk.img"
    assert disk in backing_files()
    await process.kill()
    await until_gone(oci_runtime, state_dir, "other")
    assert await eventually(lambda: disk not in backing_files())


def test_claim_is_exclusive_until_release(state_dir: Path) -> None:
    owner = Owner.claim(state_dir, "one")
    with pytest.raises(RuntimeUnavailable):
        Owner.claim(state_dir, "one")
    with bury_if_dead(state_dir, "one") as dead:
        assert not dead
    owner.release()
    owner.release()
    assert owner_names(state_dir) == []
    Owner.claim(state_dir, "one").release()


def test_claim_waits_for_running_removal(state_dir: Path) -> None:
    with bury_if_dead(state_dir, "never-was") as dead:
        assert dead
    owner = Owner.claim(state_dir, "one")
    owner.sandbox_dir("x").mkdir()
    pid = os.fork()
    if pid == 0:
        Owner.claim(state_dir, "two").sandbox_dir("y").mkdir()
        os._exit(0)
    os.waitpid(pid, 0)
    assert owner_names(state_dir) == ["one", "two"]
    with ThreadPoolExecutor() as another, bury_if_dead(state_dir, "two") as dead:
        assert dead
        returning = another.submit(Owner.claim, state_dir, "two")
        with pytest.raises(TimeoutError):
            returning.result(timeout=10 * LOCK_TRIES * LOCK_RETRY_S)
    assert not returning.result().inherited
    returning.result().release()
    assert owner_names(state_dir) == ["one"]
    owner.release()


def test_failed_removal_keeps_directory(state_dir: Path) -> None:
    (state_dir / "owners" / "gone").mkdir(parents=True)
    with pytest.raises(ZeroDivisionError), bury_if_dead(state_dir, "gone"):
        raise ZeroDivisionError
    assert owner_names(state_dir) == ["gone"]
    with bury_if_dead(state_dir, "gone") as dead:
        assert dead
    assert owner_names(state_dir) == []


def test_deep_directory_of_dead_owner_is_removed(state_dir: Path) -> None:
    """Where its disk is a plain directory, what its sandboxes wrote lies there."""
    home = state_dir / "owners" / "gone"
    home.mkdir(parents=True)
    place = os.open(home, os.O_DIRECTORY)
    for _ in range(5000):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_DIRECTORY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    with bury_if_dead(state_dir, "gone") as dead:
        assert dead
    assert owner_names(state_dir) == []


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x" * 33, "new\nline"])
def test_invalid_owner_names_are_refused(state_dir: Path, name: str) -> None:
    with pytest.raises(SpecError):
        Owner.claim(state_dir, name)
    with bury_if_dead(state_dir, name) as dead:
        assert not dead


def test_unusable_state_dir_is_refused() -> None:
    with pytest.raises(RuntimeUnavailable, match="state_dir"):
        Owner.claim(Path("/proc/no"))

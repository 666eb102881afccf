"""Two ends of life: whatever a dead owner leaves goes, whatever a living one holds stays.

The reaper works on the whole machine, where other tests' owners die at the same time: counts are at least, not exactly.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes import RuntimeUnavailable, SandboxSpec, SpecError
from sandboxes.owner import Owner, estate, owner_names
from sandboxes.reaper import reap
from sandboxes.runtimes.docker import DockerRuntime
from sandboxes.runtimes.engine import Engine
from sandboxes.toolbox import Toolbox
from tests.sandboxes.conformance import WAIT_S, living

OWNER = """
import asyncio, sys
from pathlib import Path
from sandboxes import SandboxSpec
from sandboxes.runtimes.docker import DockerRuntime
from sandboxes.toolbox import Toolbox

async def main(state_dir, owner, toolbox, image):
    runtime = await DockerRuntime.open(state_dir=Path(state_dir), owner=owner, toolbox=Toolbox(Path(toolbox)))
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
    async def start(cls, state_dir: Path, owner: str, toolbox: Toolbox, image: str) -> "OwnerProcess":
        arguments = (str(state_dir), owner, str(toolbox.path), image)
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


async def labelled(state_dir: Path) -> set[str]:
    """Sandboxes of any owner of this state directory, in any state."""
    engine = Engine()
    await engine.connect()
    try:
        found = await engine.containers(f"farm.state_dir={state_dir}")
    finally:
        await engine.close()
    return {container.labels["farm.sandbox"] for container in found}


@pytest.fixture
async def other(state_dir: Path, toolbox: Toolbox, test_image: str) -> AsyncIterator[OwnerProcess]:
    process = await OwnerProcess.start(state_dir, "other", toolbox, test_image)
    assert await process.line() == "open"
    yield process
    await process.kill()


@pytest.mark.docker
async def test_what_a_killed_owner_left_goes(
    docker_runtime: DockerRuntime, state_dir: Path, other: OwnerProcess
) -> None:
    left = await other.line()
    await docker_runtime.reap()
    assert await labelled(state_dir) == {left}
    await other.kill()
    assert await docker_runtime.reap() >= 1
    assert await labelled(state_dir) == set()
    assert "other" not in owner_names(state_dir)


@pytest.mark.docker
async def test_an_owner_killed_in_mid_boot_leaves_nothing(
    docker_runtime: DockerRuntime, state_dir: Path, other: OwnerProcess
) -> None:
    await other.kill()
    async with asyncio.timeout(WAIT_S):
        # The daemon may finish a creation whose asker is dead: it is found at one of the next rounds.
        while "other" in owner_names(state_dir) or await labelled(state_dir):
            await docker_runtime.reap()
    assert await labelled(state_dir) == set()
    assert "other" not in owner_names(state_dir)


@pytest.mark.docker
async def test_what_is_being_made_stays(docker_runtime: DockerRuntime, test_image: str) -> None:
    """Boots and reapers at the same time, again and again."""
    stop = asyncio.Event()

    async def keep_reaping() -> None:
        while not stop.is_set():
            await docker_runtime.reap()

    reapers = [asyncio.create_task(keep_reaping()) for _ in range(2)]
    made = await asyncio.gather(*(docker_runtime.create(SandboxSpec(test_image)) for _ in range(6)))
    stop.set()
    await asyncio.gather(*reapers)
    assert await living(docker_runtime) == {sandbox.id for sandbox in made}
    for sandbox in made:
        assert (await sandbox.exec(["true"], timeout_s=WAIT_S)).exit_code == 0


@pytest.mark.docker
async def test_reapers_at_once_do_not_stumble(
    docker_runtime: DockerRuntime, state_dir: Path, other: OwnerProcess
) -> None:
    await other.line()
    await other.kill()
    engines = [Engine() for _ in range(4)]
    try:
        for engine in engines:
            await engine.connect()
        assert sum(await asyncio.gather(*(reap(engine, state_dir) for engine in engines))) >= 1
    finally:
        for engine in engines:
            await engine.close()
    assert await labelled(state_dir) == set()


@pytest.mark.docker
async def test_an_owner_that_returns_finds_what_it_left(
    state_dir: Path, toolbox: Toolbox, test_image: str, other: OwnerProcess
) -> None:
    left = await other.line()
    with pytest.raises(RuntimeUnavailable, match="lives in another process"):
        await DockerRuntime.open(state_dir=state_dir, owner="other", toolbox=toolbox)
    await other.kill()
    runtime = await DockerRuntime.open(state_dir=state_dir, owner="other", toolbox=toolbox)
    try:
        assert await living(runtime) == {left}
        assert await runtime.reap() >= 1
        assert await living(runtime) == set()
    finally:
        await runtime.close()
    assert owner_names(state_dir) == []


@pytest.mark.docker
async def test_close_leaves_nothing(toolbox: Toolbox, test_image: str, state_dir: Path) -> None:
    runtime = await DockerRuntime.open(state_dir=state_dir, toolbox=toolbox)
    await asyncio.gather(*(runtime.create(SandboxSpec(test_image)) for _ in range(3)))
    assert len(await labelled(state_dir)) == 3
    await runtime.close()
    assert await labelled(state_dir) == set()
    assert owner_names(state_dir) == []


def test_a_claim_is_exclusive_and_ends_with_release(state_dir: Path) -> None:
    owner = Owner.claim(state_dir, "one")
    with pytest.raises(RuntimeUnavailable):
        Owner.claim(state_dir, "one")
    with estate(state_dir, "one") as dead:
        assert not dead
    owner.release()
    owner.release()
    assert owner_names(state_dir) == []
    Owner.claim(state_dir, "one").release()


def test_a_dead_owner_cannot_return_while_it_is_buried(state_dir: Path) -> None:
    with estate(state_dir, "never-was") as dead:
        assert dead
    owner = Owner.claim(state_dir, "one")
    owner.sandbox_dir("x").mkdir()
    pid = os.fork()
    if pid == 0:
        Owner.claim(state_dir, "two").sandbox_dir("y").mkdir()
        os._exit(0)
    os.waitpid(pid, 0)
    assert owner_names(state_dir) == ["one", "two"]
    with estate(state_dir, "two") as dead:
        assert dead
        with pytest.raises(RuntimeUnavailable):
            Owner.claim(state_dir, "two")
    assert owner_names(state_dir) == ["one"]
    owner.release()


def test_a_burial_that_fails_leaves_the_estate(state_dir: Path) -> None:
    (state_dir / "owners" / "gone").mkdir(parents=True)
    with pytest.raises(ZeroDivisionError), estate(state_dir, "gone"):
        raise ZeroDivisionError
    assert owner_names(state_dir) == ["gone"]
    with estate(state_dir, "gone") as dead:
        assert dead
    assert owner_names(state_dir) == []


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x" * 33, "new\nline"])
def test_names_that_are_no_names(state_dir: Path, name: str) -> None:
    with pytest.raises(SpecError):
        Owner.claim(state_dir, name)
    with estate(state_dir, name) as dead:
        assert not dead


def test_a_state_dir_that_cannot_be_made() -> None:
    with pytest.raises(RuntimeUnavailable, match="state_dir"):
        Owner.claim(Path("/proc/no"))

"""An owner that is killed and comes back: what lived goes on where it was, nothing runs twice, nothing is left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import docker
import pytest

from sandboxes import (
    AnswerLost,
    DockerRuntime,
    FakeRuntime,
    OciRuntime,
    Runtime,
    RuntimeUnavailable,
    Sandbox,
    SandboxGone,
    SandboxSpec,
    WarmPool,
)
from sandboxes.cgroups.cgroups import Cgroups, find_hierarchies
from sandboxes.ownership.owner import Identity, Owner, bury_if_dead, group_of, owner_names
from sandboxes.ownership.sandbox_record import SandboxRecord
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.owner_process import OwnerProcess
from tests.support.sandboxes.conformance import WAIT_S, living, text, until_there
from tests.support.services import missing, needs_root

pytestmark = [pytest.mark.docker, needs_root]

Open = Callable[..., Awaitable["DockerRuntime | OciRuntime"]]


@pytest.fixture(params=["docker", "oci"])
def kind(request: pytest.FixtureRequest, docker_client: docker.DockerClient) -> str:
    return str(request.param)


@pytest.fixture
async def owner(kind: str, state_dir: Path, toolbox: Toolbox) -> AsyncIterator[OwnerProcess]:
    owner = await OwnerProcess.start(kind, state_dir, toolbox)
    yield owner
    await owner.kill()


@pytest.fixture
async def come_back(kind: str, state_dir: Path, toolbox: Toolbox) -> AsyncIterator[Open]:
    """Open the runtime that the owner had, by its name, or another kind of it. All of it is gone at the end."""
    opened: list[DockerRuntime | OciRuntime] = []

    async def open_it(other: str = kind) -> DockerRuntime | OciRuntime:
        chosen: type[DockerRuntime] | type[OciRuntime] = OciRuntime if other == "oci" else DockerRuntime
        try:
            runtime = await chosen.open(state_dir=state_dir, owner="agent", grace_s=300, toolbox=toolbox)
        except RuntimeUnavailable as error:
            missing(f"the {other} runtime", str(error))
            raise
        opened.append(runtime)
        return runtime

    yield open_it
    for runtime in opened:
        await runtime.close()
    assert "agent" not in owner_names(state_dir)
    assert groups(state_dir) == set()


def groups(state_dir: Path) -> set[str]:
    return Cgroups(find_hierarchies(), group_of(Identity.here(state_dir, "agent"))).names()


async def adopted(runtime: Runtime) -> dict[str, Sandbox]:
    return {sandbox.id: sandbox for sandbox in await runtime.adopt()}


async def test_living_sandbox_is_adopted_unchanged(owner: OwnerProcess, come_back: Open, test_image: str) -> None:
    one = await owner.told("create", test_image, [])
    other = await owner.told("create", test_image, [])
    await owner.told("shell", one, "x=1; cd /tmp; echo kept > file; (sleep 1; echo late > late) &")
    await owner.kill()
    runtime = await come_back()
    found = await adopted(runtime)
    assert found.keys() == {one, other} == await living(runtime)
    box = found[one]
    assert box.spec == SandboxSpec(test_image)
    assert (box.workdir, found[other].image_digest) == ("/", box.image_digest)
    assert text(await box.shell('echo "[$x]"; pwd; cat file', timeout_s=WAIT_S)) == "[1]\n/tmp\nkept\n"
    await until_there(box, "/tmp/late")
    await runtime.reap()
    assert await living(runtime) == {one, other}
    fork = await box.fork()
    assert await fork.read_file("/tmp/file") == b"kept\n"
    await asyncio.gather(*(each.remove() for each in (*found.values(), fork)))
    assert await living(runtime) == set()


async def test_interrupted_command_runs_once(owner: OwnerProcess, come_back: Open, test_image: str) -> None:
    command = "echo > /tmp/begun; sleep 1; echo once >> /tmp/notes; echo said"
    box_id = await owner.told("create", test_image, [])
    await owner.told("send", box_id, command, "rollout-1/turn-3/call-0")
    await owner.kill()
    box = (await adopted(await come_back()))[box_id]
    answer = await box.shell(command, timeout_s=60, call_id="rollout-1/turn-3/call-0")
    assert text(answer) == "said\n"
    assert await box.read_file("/tmp/notes") == b"once\n"
    again = await box.shell(command, timeout_s=60, call_id="rollout-1/turn-3/call-0")
    assert again == answer
    assert await box.read_file("/tmp/notes") == b"once\n"


async def test_late_repetition_runs_nothing(owner: OwnerProcess, come_back: Open, test_image: str) -> None:
    box_id = await owner.told("create", test_image, [])
    await owner.kill()
    box = (await adopted(await come_back()))[box_id]
    for number in range(300):
        await box.exec(["true"], timeout_s=60, call_id=f"call {number}")
    with pytest.raises(AnswerLost, match="'call 0' has run"):
        await box.exec(["true"], timeout_s=60, call_id="call 0")
    assert (await box.exec(["true"], timeout_s=60, call_id="call 299")).exit_code == 0
    for _ in range(2):
        long = box.exec(["seq", "1000000"], output_limit=16 * 2**20, timeout_s=60, call_id="long")
        if _ == 0:
            assert len((await long).stdout.head) > 4 * 2**20
        else:
            with pytest.raises(AnswerLost):
                await long


async def test_ended_and_unfinished_sandboxes_are_removed(
    owner: OwnerProcess, come_back: Open, kind: str, state_dir: Path, test_image: str
) -> None:
    dead, unknown, alive = [await owner.told("create", test_image, []) for _ in range(3)]
    await owner.kill()
    (state_dir / "owners" / "agent" / f"{unknown}.record").unlink()
    runtime = await come_back()
    os.kill(await first_process(runtime, dead), signal.SIGKILL)
    assert (await adopted(runtime)).keys() == {alive}
    assert await living(runtime) == {alive}


async def test_process_with_reused_pid_is_not_killed(
    docker_client: docker.DockerClient, state_dir: Path, toolbox: Toolbox, test_image: str
) -> None:
    owner = await OwnerProcess.start("oci", state_dir, toolbox)
    box_id = await owner.told("create", test_image, [])
    await owner.kill()
    runtime = await OciRuntime.open(state_dir=state_dir, owner="agent", toolbox=toolbox)
    innocent = await asyncio.create_subprocess_exec("sleep", "infinity")
    try:
        pid_file = runtime._files.sandbox_dir(box_id) / "pid"
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        pid_file.write_text(str(innocent.pid))  # as when all numbers have been given since
        assert await adopted(runtime) == {}
        assert await living(runtime) == set()
        await runtime.reap()
        innocent.terminate()
        assert await innocent.wait() == -signal.SIGTERM
    finally:
        await runtime.close()
        if innocent.returncode is None:
            innocent.kill()


async def first_process(runtime: "DockerRuntime | OciRuntime", sandbox_id: str) -> int:
    if isinstance(runtime, DockerRuntime):
        return await runtime.first_pid(sandbox_id)
    return int((runtime._files.sandbox_dir(sandbox_id) / "pid").read_text())


async def test_frozen_sandbox_of_dead_owner_is_thawed(
    docker_client: docker.DockerClient, state_dir: Path, toolbox: Toolbox, test_image: str
) -> None:
    owner = await OwnerProcess.start("oci", state_dir, toolbox)
    box_id = await owner.told("create", test_image, [])
    await owner.kill()
    cgroups = Cgroups(find_hierarchies(), group_of(Identity.here(state_dir, "agent")))
    await cgroups.freeze(box_id)
    runtime = await OciRuntime.open(state_dir=state_dir, owner="agent", toolbox=toolbox)
    try:
        box = (await adopted(runtime))[box_id]
        assert text(await box.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    finally:
        await runtime.close()


async def test_forks_and_snapshots_are_adopted(
    owner: OwnerProcess,
    come_back: Open,
    kind: str,
    docker_client: docker.DockerClient,
    state_dir: Path,
    test_image: str,
) -> None:
    source = await owner.told("create", test_image, [])
    await owner.told("shell", source, "echo kept > /tmp/file")
    fork = await owner.told("fork", source)
    second = await owner.told("fork", fork)
    await owner.told("snapshot", second)
    await owner.kill()
    runtime = await come_back()
    found = await adopted(runtime)
    assert found.keys() == {source, fork, second}
    await found[fork].remove()
    assert await found[second].read_file("/tmp/file") == b"kept\n"
    third = await found[second].fork()
    await found[second].remove()
    assert await third.read_file("/tmp/file") == b"kept\n"
    await third.remove()
    assert images_of(docker_client, state_dir) == set()
    if isinstance(runtime, OciRuntime):
        assert runtime._files.names() == {source}


def images_of(client: docker.DockerClient, state_dir: Path) -> set[str]:
    labels = ["farm.snapshot", f"farm.state_dir={state_dir}"]
    return {str(image.id) for image in client.images.list(all=True, filters={"label": labels})}


async def test_unadopted_sandboxes_are_reaped(owner: OwnerProcess, come_back: Open, test_image: str) -> None:
    box_id = await owner.told("create", test_image, [])
    await owner.told("snapshot", box_id)
    await owner.kill()
    runtime = await come_back()
    async with runtime.scope(SandboxSpec(test_image)) as mine:
        assert await runtime.reap() >= 1
        assert await living(runtime) == {mine.id}


async def test_other_runtime_kind_removes_leftovers(
    owner: OwnerProcess,
    come_back: Open,
    kind: str,
    docker_client: docker.DockerClient,
    state_dir: Path,
    test_image: str,
) -> None:
    box_id = await owner.told("create", test_image, [])
    await owner.told("fork", box_id)
    await owner.kill()
    runtime = await come_back("docker" if kind == "oci" else "oci")
    assert await adopted(runtime) == {}
    assert groups(state_dir) == set()
    labels = [f"farm.state_dir={state_dir}"]
    left = docker_client.containers.list(all=True, filters={"label": labels})
    assert [container.name for container in left if container.labels["farm.sandbox"]] == []
    assert images_of(docker_client, state_dir) == set()


async def test_image_stays_pinned_across_owners(
    owner: OwnerProcess, come_back: Open, docker_client: docker.DockerClient, test_image: str
) -> None:
    box_id = await owner.told("create", test_image, [])
    await owner.kill()
    box = (await adopted(await come_back()))[box_id]
    with pytest.raises(docker.errors.APIError, match="being used"):
        docker_client.images.remove(box.image_digest)


async def test_shut_egress_stays_shut(owner: OwnerProcess, come_back: Open, test_image: str) -> None:
    listening = "grep -c :0C38 /proc/net/tcp"
    shut = await owner.told("create", test_image, ["localhost"])
    open_ = await owner.told("create", test_image, ["localhost"])
    await owner.told("shut", shut)
    await owner.kill()
    found = await adopted(await come_back())
    assert text(await found[open_].shell(listening, timeout_s=WAIT_S)) == "1\n"
    assert text(await found[shut].shell(listening, timeout_s=WAIT_S)) == "0\n"
    assert found[shut].spec.egress == ("localhost",)


async def test_repeatedly_killed_owner_always_returns(
    kind: str, state_dir: Path, toolbox: Toolbox, come_back: Open, test_image: str
) -> None:
    for _ in range(3):
        owner = await OwnerProcess.start(kind, state_dir, toolbox)
        await owner.kill()
    owner = await OwnerProcess.start(kind, state_dir, toolbox)
    box_id = await owner.told("create", test_image, [])
    await owner.kill()
    assert (await adopted(await come_back())).keys() == {box_id}


async def test_owner_killed_during_boot_adopts_complete_sandboxes(
    owner: OwnerProcess, come_back: Open, test_image: str
) -> None:
    whole = await owner.told("create", test_image, [])
    creating = asyncio.create_task(owner.told("create", test_image, []))
    await asyncio.sleep(0.02)  # any moment of the boot will do
    await owner.kill()
    second = await creating
    runtime = await come_back()
    found = await adopted(runtime)
    assert {whole, second} - {""} <= found.keys()  # it may be whole and nobody told
    assert len(found) <= 2
    for box in found.values():
        assert text(await box.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    async with asyncio.timeout(WAIT_S):
        while await living(runtime) != found.keys():  # the daemon may finish a creation whose asker is dead
            await runtime.reap()


async def test_dead_owner_is_kept_during_grace(
    owner: OwnerProcess, come_back: Open, docker_runtime: DockerRuntime, state_dir: Path, test_image: str
) -> None:
    box_id = await owner.told("create", test_image, [])
    await owner.kill()
    for _ in range(2):
        await docker_runtime.reap()
    found = await adopted(await come_back())
    assert found.keys() == {box_id}
    with bury_if_dead(state_dir, "agent", now_s=1e9) as dead:
        assert not dead, "it lives again"


def test_grace_ends_at_reboot(state_dir: Path) -> None:
    pid = os.fork()
    if pid == 0:
        Owner.claim(state_dir, "one", grace_s=300)
        os._exit(0)
    os.waitpid(pid, 0)
    with bury_if_dead(state_dir, "one", now_s=50.0) as dead:
        assert not dead
    grace = state_dir / "owners" / "one" / "grace"
    grace.write_text(grace.read_text().replace('"boot": "', '"boot": "other'))
    with bury_if_dead(state_dir, "one", now_s=60.0) as dead:
        assert dead
    assert owner_names(state_dir) == []


def test_grace_starts_when_death_is_noticed(state_dir: Path) -> None:
    pid = os.fork()
    if pid == 0:
        Owner.claim(state_dir, "one", grace_s=300)
        os._exit(0)
    os.waitpid(pid, 0)
    seen = []
    for now_s in (5000.0, 5299.0, 5301.0):
        with bury_if_dead(state_dir, "one", now_s=now_s) as dead:
            seen.append(dead)
    assert seen == [False, False, True]
    assert owner_names(state_dir) == []


async def test_removed_sandbox_is_not_adopted(owner: OwnerProcess, come_back: Open, test_image: str) -> None:
    box_id = await owner.told("create", test_image, [])
    await owner.kill()
    box = (await adopted(await come_back()))[box_id]
    await box.remove()
    with pytest.raises(SandboxGone, match="was removed"):
        await box.exec(["true"], timeout_s=WAIT_S)


async def test_warm_pool_returns_adopted_sandboxes() -> None:
    runtime = FakeRuntime({"farm-test/fake:1": {}})
    left = await runtime.create(SandboxSpec("farm-test/fake:1", labels={"rollout": "r"}))
    pool = WarmPool(runtime)
    (found,) = await pool.adopt()
    assert (found.id, found.spec.labels) == (left.id, {"rollout": "r"})
    assert await living(pool) == {left.id}
    await pool.close()


async def test_assigned_pool_sandbox_keeps_its_labels(
    docker_client: docker.DockerClient, state_dir: Path, toolbox: Toolbox, test_image: str
) -> None:
    first = await OciRuntime.open(state_dir=state_dir, owner="agent", toolbox=toolbox)
    box = await first.create(SandboxSpec(test_image))
    box.assign(SandboxSpec(test_image, labels={"rollout": "r"}))
    record = SandboxRecord.parse(first._owner.record(box.id))
    assert record.spec == SandboxSpec(test_image, labels={"rollout": "r"})
    await first.close()

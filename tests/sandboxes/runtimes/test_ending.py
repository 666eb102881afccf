"""By whose doing a container ended, found of real containers that end in every way."""

import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from sandboxes import LossCause, Sandbox, SandboxGone, SandboxSpec
from sandboxes.docker_engine.answers import ContainerState
from sandboxes.docker_engine.api import Engine
from sandboxes.ownership.labels import container_name
from sandboxes.runtimes.docker.exit_cause import caused_by, find_exit_cause, is_ending
from sandboxes.runtimes.docker.runtime import DockerRuntime
from tests.support.outside import crash, first_process, mute
from tests.support.services import needs_root

pytestmark = pytest.mark.docker


@pytest.fixture
async def sandbox(docker_runtime: DockerRuntime, test_image: str) -> AsyncIterator[Sandbox]:
    async with docker_runtime.scope(SandboxSpec(test_image)) as sandbox:
        yield sandbox


@pytest.fixture
def container(docker_client: docker.DockerClient, sandbox: Sandbox) -> Container:
    return docker_client.containers.get(container_name(sandbox.id))


@pytest.mark.parametrize("status", [0, 1, 2, 128 + 4, 128 + 6, 128 + 7, 128 + 11, 128 + 24, 128 + 25, 128 + 31])
def test_exit_or_crash_is_inside_cause(status: int) -> None:
    assert caused_by(ContainerState(0, False, False, False, status, "")) is LossCause.INSIDE


def test_dead_and_dying_processes_are_ending() -> None:
    assert not is_ending(os.getpid())
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_ending(child.pid)
    child.wait()
    assert is_ending(child.pid)


@needs_root
async def test_silent_server_is_inside_cause(
    docker_runtime: DockerRuntime, docker_client: docker.DockerClient, sandbox: Sandbox
) -> None:
    mute(first_process(docker_client, sandbox.id))
    found = await docker_runtime.exit_cause(sandbox.id)
    assert (found.reason, found.by) == ("its container still runs", LossCause.INSIDE)


@needs_root
async def test_crash_is_inside_cause_and_logged(
    docker_client: docker.DockerClient, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    crash(first_process(docker_client, sandbox.id))
    with pytest.raises(SandboxGone, match=r"ended with status 1(39|32)") as gone:
        await sandbox.stat("/")
    assert gone.value.by is LossCause.INSIDE
    assert [record.levelname for record in caplog.records if sandbox.id in record.message] == ["ERROR"]


async def test_pause_is_outside_cause(docker_runtime: DockerRuntime, sandbox: Sandbox, container: Container) -> None:
    container.pause()
    assert (await docker_runtime.exit_cause(sandbox.id)).by is LossCause.OUTSIDE
    container.unpause()


async def test_container_stop_is_outside_cause(sandbox: Sandbox, container: Container) -> None:
    """The tool server is deaf to SIGTERM; what follows is a SIGKILL."""
    container.stop(timeout=1)
    with pytest.raises(SandboxGone, match="status 137") as gone:
        await sandbox.stat("/")
    assert gone.value.by is LossCause.OUTSIDE


async def test_other_outside_signals_do_not_end_sandbox(sandbox: Sandbox, container: Container) -> None:
    for name in ("TERM", "INT", "HUP", "SEGV", "ABRT", "XCPU"):
        container.kill(f"SIG{name}")
    assert (await sandbox.stat("/")).path == "/"


async def test_removal_is_outside_cause(sandbox: Sandbox, container: Container) -> None:
    container.remove(force=True, v=True)
    with pytest.raises(SandboxGone, match="removed") as gone:
        await sandbox.stat("/")
    assert gone.value.by is LossCause.OUTSIDE


async def test_missing_daemon_is_outside_cause(tmp_path: Path) -> None:
    engine = Engine(f"unix://{tmp_path}/docker.sock")
    assert (await find_exit_cause(engine, "any")).by is LossCause.OUTSIDE
    await engine.close()

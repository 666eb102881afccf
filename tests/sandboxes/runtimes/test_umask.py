"""Where this process makes files for itself alone, what sandboxes need is theirs to read all the same."""

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from sandboxes import OciRuntime, SandboxSpec
from sandboxes.runtimes.docker.runtime import DockerRuntime
from sandboxes.toolserver.toolbox import ensure_toolbox
from tests.support.images import busybox_layer, made_image
from tests.support.sandboxes.conformance import WAIT_S, text
from tests.support.services import needs_root

pytestmark = pytest.mark.docker

HIDDEN = "/sys/firmware"


@pytest.fixture
def nobodys_image(docker_client: docker.DockerClient) -> Iterator[str]:
    yield from made_image(docker_client, [busybox_layer()], {"User": "1000:1000"})


@pytest.fixture
def closed_umask(nobodys_image: str) -> Iterator[None]:
    """``nobodys_image`` is made before."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@needs_root
@pytest.mark.usefixtures("closed_umask")
@pytest.mark.parametrize("kind", [OciRuntime, DockerRuntime])
async def test_restrictive_umask_does_not_affect_sandbox(
    kind: type[OciRuntime | DockerRuntime], nobodys_image: str, state_dir: Path
) -> None:
    runtime = await kind.open(state_dir=state_dir, toolbox=ensure_toolbox(state_dir))
    try:
        async with runtime.scope(SandboxSpec(nobodys_image)) as sandbox:
            for command in ("cat /etc/hosts", "ls /", "ls -A /.farm/bin", f"ls -A {HIDDEN}", "ls -A /sys", "umask"):
                done = await sandbox.exec(["sh", "-c", command], timeout_s=WAIT_S)
                assert done.exit_code == 0, done
            assert text(done) == "0022\n"
            assert text(await sandbox.exec(["/.farm/bin/bash", "-c", "id -u"], timeout_s=WAIT_S)) == "1000\n"
            assert (await sandbox.exec(["/.farm/bin/rg", "localhost", "/etc/hosts"], timeout_s=WAIT_S)).exit_code == 0
    finally:
        await runtime.close()

"""Calls of Harbor's environment interface that a run of a small task does not make."""

import asyncio
import filecmp
import os
from pathlib import Path
from typing import Any

import pytest
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from farm.plugins.harbor import FarmEnvironment
from farm.plugins.local_sandboxes import local_sandboxes

NO_NETWORK = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


def environment(policy: NetworkPolicy = NO_NETWORK, **chosen: Any) -> FarmEnvironment:
    home = Path("task/environment")
    home.mkdir(parents=True, exist_ok=True)
    config = EnvironmentConfig(docker_image="farm-base:1", cpus=0.5, memory_mb=256, storage_mb=100)
    return FarmEnvironment(
        home, "task", "task__env", TrialPaths(Path("trial")), config, network_policy=policy, **chosen
    )


async def transfer(env: FarmEnvironment) -> None:
    source = Path("source")
    (source / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("run.sh")
    os.chown(source / "run.sh", 1234, 1234)
    await env.upload_dir(source, "/here/and there")
    ran = await env.exec("./link; ls -ln run.sh", cwd="/here/and there")
    assert (ran.return_code, ran.stderr) == (0, ""), ran
    assert ran.stdout is not None
    assert ran.stdout.splitlines()[0] == "ran"
    assert " 0 0 " in ran.stdout
    await env.exec("mkfifo pipe; ln -s /etc/passwd out", cwd="/here/and there")
    await env.download_dir("/here/and there", "back")
    assert sorted(os.listdir("back")) == ["empty", "link", "run.sh"]
    assert os.access("back/run.sh", os.X_OK)
    await env.upload_file(source / "run.sh", "/new/place/run.sh")
    assert (await env.exec("/new/place/run.sh", env={"A": "b"})).stdout == "ran\n"
    await env.download_file("/new/place/run.sh", "a/file")
    assert filecmp.cmp("a/file", "source/run.sh", shallow=False)


async def refuse(env: FarmEnvironment) -> None:
    assert (await env.exec("id -u", user="root")).stdout == "0\n"
    with pytest.raises(RuntimeError, match="is not the user of the image"):
        await env.exec("true", user="nobody")
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        await env.exec("sleep 60", timeout_sec=1)
    with pytest.raises(RuntimeError, match="download of /nowhere failed"):
        await env.download_dir("/nowhere", "nowhere")
    with pytest.raises(ValueError, match="--ek public_hosts"):
        environment(NetworkPolicy(network_mode=NetworkMode.PUBLIC))
    environment(NetworkPolicy(network_mode=NetworkMode.PUBLIC), public_hosts="none")


async def main() -> None:
    first, second = environment(), environment()
    await asyncio.gather(first.start(force_build=False), second.start(force_build=False))
    local = await local_sandboxes()
    assert len([sandbox async for sandbox in local.runtime.living()]) == 2, "the two share a runtime"
    await transfer(first)
    await refuse(first)
    await first.stop(delete=True)
    await second.stop(delete=False)
    await second.stop(delete=True)
    assert not [sandbox async for sandbox in local.runtime.living()]
    await environment().start(force_build=False)  # and it is never stopped


asyncio.run(main())
left = [path.name for path in Path("state/owners").iterdir() if not path.name.startswith(".")]
assert not left, "the end of the loop closes the runtime, which removes all sandboxes"

"""The OpenEnv server over a real gateway and real sandboxes."""

import asyncio

import pytest

from tests.support.farm.sandbox_place import OPERATOR, SandboxPlace
from tests.support.pages import blocks
from tests.support.plugin_env import PAGE, PluginEnv

pytestmark = [pytest.mark.docker, pytest.mark.redis, pytest.mark.timeout(600), pytest.mark.xdist_group("plugins")]


async def test_client_plays_graded_episodes(plugin_env: PluginEnv, place: SandboxPlace, own_port: int) -> None:
    served = ("-m", "farm.plugins.openenv", "--url", place.url, "--task-id", "tiny", "--taskset", "demo")
    (block,) = [block for block in blocks(PAGE, "python") if "GenericEnvClient" in block.text]
    async with plugin_env.process("python", *served, "--port", own_port, FARM_TOKEN=OPERATOR) as server:
        await started(server)
        await plugin_env.inside("openenv_session.py", f"http://127.0.0.1:{own_port}")
        printed = await plugin_env.run("python", "-c", block.text.replace("8000", str(own_port)))
        assert printed.splitlines()[-1] == "True 0.0"
    assert await place.lives() == 0


async def started(server: asyncio.subprocess.Process) -> None:
    assert server.stdout is not None
    printed = b""
    while b"Uvicorn running" not in printed:
        line = await server.stdout.readline()
        assert line, printed.decode(errors="replace")
        printed += line

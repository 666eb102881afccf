"""mini-SWE-agent's environment over a real gateway and real sandboxes."""

import pytest

from tests.support.farm.sandbox_place import OPERATOR, SandboxPlace
from tests.support.plugin_env import PluginEnv

pytestmark = [pytest.mark.docker, pytest.mark.redis, pytest.mark.timeout(600), pytest.mark.xdist_group("plugins")]


async def test_default_agent_solves_task_in_sandbox(plugin_env: PluginEnv, place: SandboxPlace) -> None:
    await plugin_env.inside("mini_agent.py", place.url, OPERATOR)
    assert await place.lives() == 0

"""Harbor's environment on real sandboxes."""

import json
from collections.abc import Callable

import pytest

from farm.plugins.local_sandboxes import built_image
from tests.support.pages import blocks
from tests.support.plugin_env import PAGE, PluginEnv

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("plugins")]


async def test_harbor_run_solves_bundled_task(plugin_env: PluginEnv, removed_later: Callable[[str], None]) -> None:
    """The commands are those of the page. No other bundled task has tests that download nothing."""
    (block,) = [block for block in blocks(PAGE, "sh") if "harbor run" in block.text]
    create, run = block.text.splitlines()
    await plugin_env.shell(create)
    removed_later(built_image("harbor", plugin_env.home / "free-apples/environment"))
    await plugin_env.shell(run)
    (path,) = (plugin_env.home / "jobs").glob("*/free-apples__*/result.json")
    trial = json.loads(path.read_text())
    assert trial["exception_info"] is None
    assert trial["verifier_result"]["rewards"] == {"reward": 1.0}


async def test_environment_copies_files_and_refuses(plugin_env: PluginEnv) -> None:
    await plugin_env.inside("harbor_environment.py")

"""The environment of the plug-ins. It is big, so one worker runs all of their tests: the group ``plugins``."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandboxes.runtimes.oci.runtime import OciRuntime
from tests.support.farm.sandbox_place import SandboxPlace, sandbox_place
from tests.support.plugin_env import PluginEnv, make_plugin_env
from tests.support.services import missing


@pytest.fixture(scope="session")
def plugin_environment() -> Iterator[Path]:
    kept = os.environ.get("FARMTEST_STATE_DIR")
    place = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="farm-plugins-"))
    try:
        yield make_plugin_env(place)
    except RuntimeError as error:
        missing("the environment of the plug-ins", str(error))
    finally:
        if not kept:
            shutil.rmtree(place)


@pytest.fixture
def plugin_env(plugin_environment: Path, tmp_path: Path) -> PluginEnv:
    return PluginEnv(plugin_environment, tmp_path)


@pytest.fixture
async def place(tmp_path: Path, oci_runtime: OciRuntime, tiny_image: str) -> AsyncIterator[SandboxPlace]:
    async with sandbox_place(tmp_path, oci_runtime, tiny_image) as place:
        yield place

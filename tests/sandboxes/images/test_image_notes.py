"""Whoever makes a sandbox notes that its image is used, whichever the runtime."""

import time
from pathlib import Path

import pytest

from sandboxes import Runtime, SandboxSpec
from sandboxes.images.last_used import ImageUses

pytestmark = pytest.mark.docker


async def _check(runtime: Runtime, image: str, state_dir: Path) -> None:
    before = time.time()
    async with runtime.scope(SandboxSpec(image)):
        use = ImageUses.of(state_dir).all()[image]
    assert before - 1 < use.at <= time.time()
    assert not use.pulled


async def test_docker_sandbox_records_image_use(docker_runtime: Runtime, test_image: str, state_dir: Path) -> None:
    await _check(docker_runtime, test_image, state_dir)


async def test_oci_sandbox_records_image_use(oci_runtime: Runtime, test_image: str, state_dir: Path) -> None:
    await _check(oci_runtime, test_image, state_dir)

"""What an OCI runtime notes of its starts lies with the starter, where all starts share the room."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes import BootError, OciRuntime, SandboxLimits, SandboxSpec
from sandboxes.runtimes.boot_errors import ENVIRONMENT_BYTES, VARIABLE_BYTES
from sandboxes.runtimes.oci import starter

pytestmark = pytest.mark.docker

AT_ONCE = 24
SMALL = SandboxLimits(memory_mib=64, disk_mib=16)


def notes(runtime: OciRuntime) -> list[str]:
    inside = Path(f"/proc/{runtime._supervisor.starter._process.pid}/root")
    return os.listdir(inside / starter.STATE.relative_to("/"))


async def test_concurrent_starts_have_space_for_state(oci_runtime: OciRuntime, test_image: str) -> None:
    """Of all variables that there may be, each byte is six in what the OCI runtime reads and copies."""
    length = VARIABLE_BYTES // 2
    env = {f"A{number}": "\1" * length for number in range(ENVIRONMENT_BYTES // length - 1)}
    spec = SandboxSpec(test_image, env=env, limits=SMALL)
    booted = await asyncio.gather(*(oci_runtime.create(spec) for _ in range(AT_ONCE)), return_exceptions=True)
    assert [error for error in booted if isinstance(error, BaseException)] == []
    assert notes(oci_runtime) == []


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$"])
async def test_failed_start_leaves_no_state(oci_runtime: OciRuntime, test_image: str, tmp_path: Path, end: str) -> None:
    noting = tmp_path / "crun"
    noting.write_text(
        '#!/bin/sh\nfor name; do :; done\nmkdir -p "$2/$name/a/b" && ln -s .. "$2/$name/a/up" &&\n'
        f'echo > "$2/$name/a/b/c" && chmod 0 "$2/$name/a" && ls "$2" >&2\n{end}\n'
    )
    noting.chmod(0o755)
    starting = oci_runtime._supervisor
    starting.program = replace(starting.program, path=noting, loaded_once=False)
    await starting.renew()
    with pytest.raises(BootError, match=r"did not start: [0-9a-f]{12}$"):
        await oci_runtime.create(SandboxSpec(test_image))
    assert notes(oci_runtime) == []

"""Layers as EROFS images: what a sandbox finds in them, and how they are made and removed."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes import BootError, RuntimeUnavailable, SandboxSpec
from sandboxes.errors import DiskFull
from sandboxes.runtimes.oci.images import packed_layers
from sandboxes.runtimes.oci.images.packed_layers import PackedLayers
from sandboxes.runtimes.oci.runtime import OciRuntime
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.conformance import DISK_SHARES, WAIT_S, degraded, text

pytestmark = pytest.mark.docker

TREE = """\
# The toolbox has one more name outside for each of its files.
cd / && /.farm/bin/busybox find . -xdev -path ./tmp -prune -o -path ./proc -prune -o -print | /.farm/bin/busybox sort |
while IFS= read -r path; do
  case $path in ./.farm/*) links= ;; *) links=%h ;; esac
  /.farm/bin/busybox stat -c "%n %f %u %g %t %T $links" "$path"
  [ -d "$path" ] || /.farm/bin/busybox stat -c '%s %y' "$path"
  if [ -f "$path" ] && [ ! -h "$path" ]; then /.farm/bin/busybox md5sum < "$path"; fi
done
"""


@pytest.fixture
async def layers(tmp_path: Path) -> AsyncIterator[PackedLayers]:
    made = await PackedLayers.open(tmp_path)
    yield made
    await made.close()


def packed_in(home: Path) -> list[Path]:
    return sorted((home / packed_layers.PACKED).glob("*.erofs"))


def layer_with(place: Path, content: bytes) -> Path:
    layer = place / "abc" / "diff"
    layer.mkdir(parents=True)
    (layer / "file").write_bytes(content)
    return layer


async def tree_of(runtime: OciRuntime, spec: SandboxSpec) -> list[str]:
    async with runtime.scope(spec) as sandbox:
        done = await sandbox.exec(["/.farm/bin/bash", "-c", TREE], timeout_s=4 * WAIT_S, output_limit=64 << 20)
        assert done.exit_code == 0, done.stderr
        return text(done).splitlines()


async def test_private_layers_hold_the_same_files(oci_runtime: OciRuntime, test_image: str) -> None:
    shared = await tree_of(oci_runtime, SandboxSpec(test_image))
    private = await tree_of(oci_runtime, SandboxSpec(test_image, private_layers=True))
    assert len(shared) > 100
    assert set(private) ^ set(shared) == set()
    assert private == shared


async def test_private_layers_work_on_block_devices(
    toolbox: Toolbox, state_dir: Path, test_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels before 6.12 mount a device on the image."""
    monkeypatch.setattr(packed_layers, "_needs_device", lambda home, program: True)
    (state_dir / packed_layers.PACKED).mkdir(exist_ok=True)
    runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, disk_shares=DISK_SHARES)
    try:
        assert degraded(runtime) == []
        shared = await tree_of(runtime, SandboxSpec(test_image))
        assert await tree_of(runtime, SandboxSpec(test_image, private_layers=True)) == shared
    finally:
        await runtime.close()


async def test_missing_mkfs_erofs_is_reported(
    toolbox: Toolbox, state_dir: Path, test_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_layers, "PROGRAM", "mkfs.no-such-program")
    runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, disk_shares=DISK_SHARES)
    try:
        (lack,) = degraded(runtime)
        assert "apt-get install erofs-utils" in lack
        async with runtime.scope(SandboxSpec(test_image, private_layers=True)) as sandbox:
            assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    finally:
        await runtime.close()


async def test_layer_is_packed_once(layers: PackedLayers, tmp_path: Path) -> None:
    layer = layer_with(tmp_path, b"x" * 10_000)

    async def first_bytes() -> bytes:
        async with layers.sources([layer]) as (source,):
            return await asyncio.to_thread(lambda: source.read_bytes()[1024:1028])

    assert set(await asyncio.gather(*(first_bytes() for _ in range(8)))) == {b"\xe2\xe1\xf5\xe0"}
    (image,) = packed_in(tmp_path)
    before = image.stat().st_ino
    await first_bytes()
    assert image.stat().st_ino == before


async def test_unused_packed_layers_are_removed_and_made_again(layers: PackedLayers, tmp_path: Path) -> None:
    layer = layer_with(tmp_path, b"x")
    async with layers.sources([layer]) as (source,):
        await layers.sweep()
        (image,) = packed_in(tmp_path)
        os.utime(image, (0, 0))
        await layers.sweep()
        assert packed_in(tmp_path) == []
        assert await asyncio.to_thread(source.exists)  # a start that mounts it just now goes on
    async with layers.sources([layer]):
        assert len(packed_in(tmp_path)) == 1


async def test_layer_larger_than_the_disk_is_refused(layers: PackedLayers, tmp_path: Path) -> None:
    layer = layer_with(tmp_path, b"")
    os.truncate(layer / "file", shutil.disk_usage(tmp_path).total)
    with pytest.raises(DiskFull, match="free disk space, or use a smaller image"):
        async with layers.sources([layer]):
            pass
    assert packed_in(tmp_path) == []


async def test_missing_layer_is_reported(layers: PackedLayers, tmp_path: Path) -> None:
    with pytest.raises(BootError, match="cannot be packed"):
        async with layers.sources([tmp_path / "gone" / "diff"]):
            pass


async def test_host_without_erofs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    false = shutil.which("false")
    assert false is not None
    monkeypatch.setattr(packed_layers, "PROGRAM", false)
    with pytest.raises(RuntimeUnavailable, match="EROFS"):
        await PackedLayers.open(tmp_path)

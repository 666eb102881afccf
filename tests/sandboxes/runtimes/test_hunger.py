"""A kill for memory is told by whose limit was reached: real groups, and a real kernel that kills in them."""

import asyncio
import contextlib
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from farm.core.change import Change
from farm.core.task import ReportFormat
from farm.grading import GradingRequest, grade
from sandboxes import LossCause, OciRuntime, SandboxGone, SandboxLimits, SandboxSpec
from sandboxes.cgroups.cgroups import find_hierarchies
from sandboxes.interface import MIB
from sandboxes.runtimes.oom_attribution import OomAttribution
from tests.support.farm.grading_values import make_bundle, make_verifier, write
from tests.support.outside import prefer
from tests.support.sandboxes.conformance import WAIT_S, until_there
from tests.support.services import needs_root

pytestmark = [pytest.mark.docker, needs_root]

ROOMY, TIGHT = 256, 96
"""MiB: a sandbox's own limit, and one that is put above it."""
HUNGRY = ["probe", "memory", "192"]
HOG = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); held = b'x' * (int(sys.argv[2]) << 20)"


def unified() -> bool:
    return find_hierarchies().unified


def memory() -> Path:
    places = find_hierarchies().mounts
    return places["" if unified() else "memory"]


def limit(group: Path, mib: int) -> None:
    """Of memory and swap together; it can only be lowered."""
    names = ("memory.max", "memory.swap.max") if unified() else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    for name, value in zip(names, (mib * MIB, 0 if unified() else mib * MIB), strict=True):
        with contextlib.suppress(FileNotFoundError):
            (group / name).write_text(str(value))


def above(sandbox_id: str) -> Path:
    """The group of all sandboxes of its owner."""
    (found,) = memory().glob(f"farm-*/{sandbox_id}")
    return found.parent


async def test_own_limit_is_caused_by_sandbox(oci_runtime: OciRuntime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image, limits=SandboxLimits(memory_mib=TIGHT))) as sandbox:
        for _ in range(3):
            assert (await sandbox.exec(HUNGRY, timeout_s=WAIT_S)).exit_code == 137
        many = await sandbox.shell("for n in 1 2 3 4; do probe memory 192 & done; wait", timeout_s=WAIT_S)
        assert many.exit_code == 0
        await sandbox.ping()


async def test_kill_caused_by_others_loses_sandbox(oci_runtime: OciRuntime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image, limits=SandboxLimits(memory_mib=ROOMY))) as sandbox:
        limit(above(sandbox.id), TIGHT)
        for _ in range(2):
            with pytest.raises(SandboxGone, match="memory ran out on the host") as gone:
                await sandbox.exec(HUNGRY, timeout_s=WAIT_S)
            assert gone.value.by is LossCause.OUTSIDE


async def test_earlier_page_cache_does_not_explain_kill(oci_runtime: OciRuntime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image, limits=SandboxLimits(memory_mib=ROOMY))) as sandbox:
        # More than the memory limit, and less than the disk share of one sandbox on a machine with little free disk.
        written = await sandbox.exec(
            ["dd", "if=/dev/zero", "of=/big", "bs=1048576", f"count={ROOMY + 64}"], timeout_s=WAIT_S
        )
        assert written.exit_code == 0, written.stderr.head
        script = f"echo > /started; until test -e /go; do sleep 0.01; done; {' '.join(HUNGRY)} & {' '.join(HUNGRY)}"
        call = asyncio.create_task(sandbox.exec(["sh", "-c", script], timeout_s=WAIT_S))
        await until_there(sandbox, "/started")
        await asyncio.to_thread(prefer, await oci_runtime.first_pid(sandbox.id))
        limit(above(sandbox.id), TIGHT)
        await sandbox.write_file("/go", b"")
        with pytest.raises(SandboxGone, match="memory ran out on the host") as gone:
            await call
        assert gone.value.by is LossCause.OUTSIDE


async def test_tests_killed_by_others_have_no_verdict(oci_runtime: OciRuntime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as first:
        limit(above(first.id), TIGHT)
    verifier = make_verifier(report=ReportFormat.EXIT_CODE, command=" ".join(HUNGRY), timeout_s=WAIT_S)
    bundle = make_bundle(verifier, tests={})
    bundle = replace(bundle, task=replace(bundle.task, image=test_image, workspace="/repo", memory_mib=ROOMY))
    mended = Change((write("mended.py"),))
    with pytest.raises(SandboxGone, match="memory ran out on the host") as gone:
        await grade(GradingRequest(bundle, mended, oci_runtime, rng=random.Random(0)))
    assert gone.value.by is LossCause.OUTSIDE
    bundle = replace(bundle, task=replace(bundle.task, memory_mib=TIGHT // 2))
    own = await grade(GradingRequest(bundle, mended, oci_runtime, rng=random.Random(0)))
    assert own.reward == 0.0


@pytest.fixture
def group() -> Iterator[Path]:
    """With one above it of the same limit."""
    place = memory() / f"farm-test-{secrets.token_hex(4)}"
    place.mkdir()
    if unified():
        (place / "cgroup.subtree_control").write_text("+memory")
    below = place / "below"
    below.mkdir()
    limit(place, ROOMY)
    limit(below, ROOMY)
    yield below
    for directory in (below, place):
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()


async def eat(group: Path, mib: int) -> int:
    """The status of a process that takes so much there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOG, str(group / "cgroup.procs"), str(mib), stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait()


async def test_own_limit_differs_from_parent_limit_and_removal(group: Path) -> None:
    hunger = OomAttribution(unified=unified())
    try:
        began = time.monotonic()
        hunger.watch("it", group)
        limit(group, TIGHT)
        assert await eat(group, 2 * TIGHT) == -9
        assert hunger.reached_limit("it", began)
        assert hunger.by_others("it") == ""
        hunger.watch("it", group)
        limit(group.parent, TIGHT // 2)
        assert await eat(group, TIGHT * 3 // 4) == -9
        assert hunger.reached_limit("it", began) is False
        assert hunger.by_others("it") != ""
        hunger.watch("it", group)
        os.rmdir(group)
        assert hunger.reached_limit("it", began) is False
        assert hunger.by_others("it") == ""
        assert hunger.reached_limit("another", began) is None
    finally:
        hunger.close()

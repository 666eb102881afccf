"""Notes that a sandbox leaves for a later one in what the kernel remembers of the layers that both have."""

import random
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import ReportFormat
from farm.grading import GradingRequest, grade
from sandboxes import SandboxLimits, SandboxSpec
from sandboxes.runtimes.oci.runtime import OciRuntime
from tests.support.attacks import notes
from tests.support.attacks.project import FIXED_CART, make_task
from tests.support.outside import EitherRuntime
from tests.support.sandboxes.conformance import WAIT_S, text

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("shares")]

PROGRAM = Path(notes.__file__).read_bytes()
BITS = 64
LEGIBLE, CHANCE = 58, 50
"""A note is legible with ``LEGIBLE`` right bits. Chance gives more than ``CHANCE`` once in 500,000 notes."""
ATTEMPTS = 5


def right(found: str, bits: str) -> int:
    return sum(one == other for one, other in zip(found, bits, strict=True))


def fresh_note() -> tuple[str, str]:
    """Return a token and bits."""
    return secrets.token_hex(6), f"{secrets.randbits(BITS):0{BITS}b}"


async def run(runtime: EitherRuntime, spec: SandboxSpec, *arguments: str) -> Sequence[str]:
    async with runtime.scope(spec) as sandbox:
        await sandbox.write_file("/tmp/notes.py", PROGRAM)
        done = await sandbox.exec(["python3", "/tmp/notes.py", *arguments], timeout_s=WAIT_S)
        assert done.exit_code == 0, done.stderr
        return text(done).split()


async def bits_that_cross(runtime: EitherRuntime, writer: SandboxSpec, reader: SandboxSpec) -> list[int]:
    """Return the bits of a note that are right, for each place."""
    token, bits = fresh_note()
    await run(runtime, writer, "leave", token, bits)
    return [right(found, bits) for found in await run(runtime, reader, "read", token, str(BITS))]


async def test_note_in_shared_layers_is_read_later(either_runtime: EitherRuntime, project_image: str) -> None:
    spec = SandboxSpec(project_image, limits=SandboxLimits(memory_mib=256))
    for _ in range(ATTEMPTS):
        crossed = await bits_that_cross(either_runtime, spec, spec)
        if min(crossed) >= LEGIBLE:
            return
    pytest.fail(f"only {crossed} of {BITS} bits were right")


@pytest.mark.parametrize("later", ["shared", "private"])
async def test_private_layers_carry_no_note(oci_runtime: OciRuntime, project_image: str, later: str) -> None:
    shared = SandboxSpec(project_image, limits=SandboxLimits(memory_mib=256))
    private = replace(shared, private_layers=True)
    crossed = await bits_that_cross(oci_runtime, private, private if later == "private" else shared)
    assert max(crossed) <= CHANCE
    crossed = await bits_that_cross(oci_runtime, shared, private)
    assert max(crossed) <= CHANCE


async def test_tests_leave_no_note_for_a_later_rollout(oci_runtime: OciRuntime, project_image: str) -> None:
    token, bits = fresh_note()
    attack = (
        PROGRAM.decode().split("if __name__")[0] + f"\nfor place in PLACES:\n    leave(place, {token!r}, {bits!r})\n"
    )
    change = Change((FileChange("pricing/cart.py", ChangeKind.WRITE, (FIXED_CART + attack).encode()),))
    bundle = make_task(project_image, ReportFormat.PYTEST)
    verdict = await grade(GradingRequest(bundle, change, oci_runtime, rng=random.Random(1)))
    assert verdict.outcomes, verdict.reason
    spec = SandboxSpec(project_image, limits=SandboxLimits(memory_mib=256))
    found = await run(oci_runtime, spec, "read", token, str(BITS))
    assert max(right(one, bits) for one in found) <= CHANCE

"""Memory of the machine that no control group counts: refused where no honest program wants it, bounded elsewhere.

Each way wins first where nothing stands against it: on the machine itself, in the same numbers, or without the watch.
What the kernel gives without the watch is the same under each runtime, so these tests run under ``oci`` alone.
"""

import asyncio
import contextlib
import errno
import os
import random
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from farm.core.change import Change
from farm.core.task import ReportFormat
from farm.grading import GradingRequest, grade
from sandboxes import LossCause, SandboxGone, SandboxLimits, SandboxSpec
from sandboxes.runtimes.uncounted_memory import watch
from sandboxes.runtimes.uncounted_memory.descriptors import PROC
from sandboxes.runtimes.uncounted_memory.measure import survey
from tests.attacks.machine.conftest import ANSWER_S, Scene
from tests.support.farm.grading_values import make_bundle, make_verifier, write
from tests.support.images import PROGRAMS, compiled
from tests.support.outside import EitherRuntime
from tests.support.sandboxes.conformance import text
from tests.support.services import needs_root

MIB = 2**20
FEW, MANY = 20, 40_000
ATTEMPTS = 5
KEPT_BACK = ("sendto", "sendto6", "sendmsg", "sendmmsg", "splice", "sendfilezero", "splicezero", "cork", "corklite")
KEPT_APART = ("pktoptions", "md5", "groups6", "errors", "errors6")
LISTINGS = 100
"""Of 1 MiB each."""
HIDDEN = {
    "rewound": "open directories",
    "threads": "open directories",
    "flight": "sent over unix sockets",
    "nested": "sent over unix sockets",
}
"""Ways to keep listings open that show in no position, or in no table of descriptors of a process."""

pytestmark = [pytest.mark.docker, needs_root, pytest.mark.xdist_group("uncounted")]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """The attacker's program, for the machine."""
    program = tmp_path / "hoard"
    program.write_bytes(compiled(PROGRAMS / "hoard.c"))
    program.chmod(0o755)
    return program


def taken_outside(program: Path, kind: str, at_most: int) -> int:
    """How many the program gets where no filter is; it is ended at once."""
    with subprocess.Popen(
        [program, kind, str(at_most), "1"], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
    return int(line.split()[0])


async def test_uncounted_memory_is_refused(after_an_attack: Scene, outside: Path) -> None:
    """In one sandbox one after the other, because what is refused leaves nothing."""
    taken = {}
    for kind in KEPT_BACK + KEPT_APART:
        assert await asyncio.to_thread(taken_outside, outside, kind, FEW) >= FEW, kind
        refused = await after_an_attack.attack(f"hoard {kind} {FEW} 1", timeout_s=ANSWER_S)
        taken[kind] = text(refused).split()[0]
    assert taken == dict.fromkeys(taken, "0")


async def test_locks_without_an_owner_are_refused(after_an_attack: Scene, outside: Path) -> None:
    assert await asyncio.to_thread(taken_outside, outside, "ofd", FEW) == FEW
    refused = await after_an_attack.attack(f"hoard ofd {FEW} 1", timeout_s=ANSWER_S)
    assert text(refused).split() == ["0", str(errno.EINVAL)]


async def ended_for(scene: Scene, command: str) -> str:
    """Why the attacker was ended while the command's processes held what they had got."""
    with pytest.raises(SandboxGone) as gone:
        await scene.attack(f"{command}; sleep {ANSWER_S}", timeout_s=2 * ANSWER_S)
    assert gone.value.by is LossCause.MEMORY
    return str(gone.value)


@pytest.mark.parametrize("kind", ["posix", "memory"])
async def test_many_file_locks_end_their_sandbox_alone(after_an_attack: Scene, outside: Path, kind: str) -> None:
    assert await asyncio.to_thread(taken_outside, outside, kind, MANY) == MANY
    assert "file locks" in await ended_for(after_an_attack, f"hoard {kind} {MANY} 4")


async def test_whole_file_locks_end_their_sandbox(wide: Scene) -> None:
    assert "file locks" in await ended_for(wide, "hoard flock 4000 3")


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_open_directories_end_their_sandbox(wide: Scene) -> None:
    assert "open directories" in await ended_for(wide, "hoard directories 4000 6")


async def test_long_listings_kept_open_end_their_sandbox(wide: Scene) -> None:
    assert "open directories" in await ended_for(wide, f"hoard listings {LISTINGS} 1")


@pytest.mark.parametrize(("kind", "count"), [("backlog", 40_000), ("fullbacklog", 20_000)])
async def test_unaccepted_connections_end_their_sandbox(wide: Scene, kind: str, count: int) -> None:
    assert "TCP connections" in await ended_for(wide, f"hoard {kind} {count} 1")


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
@pytest.mark.parametrize("kind", ["timers", "epoll"])
async def test_timers_and_epoll_instances_end_their_sandbox(wide: Scene, kind: str) -> None:
    assert "timers and epoll instances" in await ended_for(wide, f"hoard {kind} 4000 72")


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_timers_are_kept_without_the_watch(wide: Scene) -> None:
    """A quarter of those that would end the sandbox, of 256 bytes each."""
    await keeps_without_the_watch(wide, "timers 4000 18", 16 * MIB)


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_unaccepted_connections_are_kept_without_the_watch(wide: Scene) -> None:
    await keeps_without_the_watch(wide, "backlog 20000 1", 32 * MIB)


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_tables_of_shared_ports_are_kept_without_the_watch(wide: Scene) -> None:
    """Half as many as would end the sandbox: 2 KiB each, beside the socket that is counted."""
    group = group_of(wide, wide.attacker.id)
    await keeps_without_the_watch(wide, "ports 4000 4", 48 * MIB)
    assert (await asyncio.to_thread(survey, group, 0))[wide.attacker.id].udp_sockets >= 16_000


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_tables_of_shared_ports_end_their_sandbox(wide: Scene) -> None:
    assert "UDP sockets" in await ended_for(wide, "hoard ports 4000 12")


@pytest.mark.parametrize("either_runtime", ["docker"], indirect=True)
async def test_terminals_end_their_sandbox(wide: Scene) -> None:
    """Under ``oci`` a sandbox has 64. Without the watch one under ``docker`` keeps those of the whole machine."""
    assert "pseudo-terminals" in await ended_for(wide, "hog ptys 1200 1")


@pytest.mark.parametrize("either_runtime", ["docker"], indirect=True)
async def test_terminals_are_kept_without_the_watch(wide: Scene) -> None:
    group = group_of(wide, wide.attacker.id)
    hoarders_of(wide).forget(wide.attacker.id)
    assert await wide.hog("ptys", at_most=1200) == 1200
    held = (await asyncio.to_thread(survey, group, 0))[wide.attacker.id]
    assert held.terminals == 1200
    assert held.certain.terminals == 0


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
@pytest.mark.parametrize("kind", ["listings", *HIDDEN])
async def test_listings_are_kept_without_the_watch(wide: Scene, kind: str) -> None:
    await keeps_without_the_watch(wide, f"{kind} {LISTINGS} 1", LISTINGS // 2 * MIB)


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_open_directories_are_kept_without_the_watch(wide: Scene) -> None:
    """Half as many as would end the sandbox, of 4 KiB each."""
    await keeps_without_the_watch(wide, "directories 4000 2", 16 * MIB)


async def keeps_without_the_watch(scene: Scene, hoard: str, at_least: int) -> None:
    """Others may give up as much of the kernel's memory meanwhile, so it is tried again."""
    hoarders_of(scene).forget(scene.attacker.id)
    for _ in range(ATTEMPTS):
        before = unreclaimable_bytes()
        taken = text(await scene.attack(f"hoard {hoard} && echo on", timeout_s=ANSWER_S)).split()
        grown = unreclaimable_bytes() - before
        assert taken[1:] == ["0", "on"]
        if grown > at_least:
            return
        await scene.attack("kill -9 $(ps | grep 'hoard' | awk '{print $1}'); true")
    pytest.fail("the kernel's memory did not grow")


def unreclaimable_bytes() -> int:
    lines = (PROC / "meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("SUnreclaim:"))


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_whole_file_locks_are_kept_without_the_watch(wide: Scene) -> None:
    group = group_of(wide, wide.attacker.id)
    hoarders_of(wide).forget(wide.attacker.id)
    assert text(await wide.attack("hoard flock 4000 3", timeout_s=ANSWER_S)).split() == ["12000", "0"]
    held = await asyncio.to_thread(survey, group, watch.MAX_LOCK_TABLE_BYTES)
    assert held[wide.attacker.id].locks > watch.MAX_LOCKS
    assert text(await wide.attack("echo on")) == "on\n"


@pytest.mark.parametrize(
    ("either_runtime", "kind"),
    [*(("oci", kind) for kind in HIDDEN), ("docker", "rewound")],
    indirect=["either_runtime"],
)
async def test_hidden_listings_end_their_sandbox(wide: Scene, kind: str) -> None:
    """What is measured is the same under each runtime, so under ``docker`` one way is enough."""
    assert HIDDEN[kind] in await ended_for(wide, f"hoard {kind} {LISTINGS} 1")


async def test_descriptors_in_flight_are_counted(wide: Scene) -> None:
    """All of them, and no socket that somebody has open."""
    assert text(await wide.attack("hog inflight 50 1", timeout_s=ANSWER_S)).split() == ["50", "0"]
    held = await asyncio.to_thread(survey, group_of(wide, wide.attacker.id), 0)
    assert held[wide.attacker.id].in_flight == 50


async def test_sampled_descriptors_give_estimate_of_all(wide: Scene) -> None:
    """Eight standard deviations are allowed."""
    assert text(await wide.attack("hoard directories 1000 4", timeout_s=ANSWER_S)).split() == ["4000", "0"]
    group = group_of(wide, wide.attacker.id)
    held = (await asyncio.to_thread(survey, group, 0, 1000))[wide.attacker.id]
    assert held.sampled
    assert 2000 < held.directories < 6000
    assert held.certain.directories == 0
    assert (await asyncio.to_thread(survey, group, 0))[wide.attacker.id].directories >= 4000


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_timers_are_counted_once(wide: Scene) -> None:
    assert text(await wide.attack("hoard timers 1000 2", timeout_s=ANSWER_S)).split() == ["2000", "0"]
    held = await asyncio.to_thread(survey, group_of(wide, wide.attacker.id), 0)
    assert 2000 <= held[wide.attacker.id].anonymous < 2100


async def test_ordinary_number_of_locks_is_kept(after_an_attack: Scene) -> None:
    """Also beside one that holds far too many, whose end takes none of the sibling's locks."""
    honest = await after_an_attack.sibling.exec(["hoard", "posix", "1000", "1"], timeout_s=ANSWER_S)
    assert text(honest).split() == ["1000", "0"]
    await ended_for(after_an_attack, f"hoard posix {MANY} 4")
    living = text(await after_an_attack.sibling.exec(["ps"], timeout_s=ANSWER_S))
    assert "hoard posix 1000 1" in living


async def test_inherited_directories_are_counted_once(wide: Scene) -> None:
    """Else many children of one process would look like a hoard."""
    opened = " ".join(f"exec {number}</srv/here;" for number in range(3, 10))
    await wide.attack(f"mkdir -p /srv/here; {opened} for i in $(seq 20); do sleep 60 & done", timeout_s=ANSWER_S)
    held = await asyncio.to_thread(survey, group_of(wide, wide.attacker.id), 0)
    assert 7 <= held[wide.attacker.id].directories < 20


async def test_whole_locks_are_counted_by_file_system(after_an_attack: Scene) -> None:
    """And not by the process in the kernel's table, whose number another sandbox may have by then."""
    assert text(await after_an_attack.attack("hoard flock 500 1", timeout_s=ANSWER_S)).split() == ["500", "0"]
    both = group_of(after_an_attack, after_an_attack.attacker.id) | group_of(
        after_an_attack, after_an_attack.sibling.id
    )
    held = await asyncio.to_thread(survey, both, watch.LOCK_TABLE_BYTES)
    assert held[after_an_attack.attacker.id].locks >= 500
    assert held[after_an_attack.sibling.id].locks < 500


async def test_change_hoarding_locks_is_judged_zero(either_runtime: EitherRuntime, test_image: str) -> None:
    """And not tried again, as if the machine had failed."""
    command = f"hoard posix {MANY} 4; sleep {ANSWER_S}"
    verifier = make_verifier(report=ReportFormat.EXIT_CODE, command=command, timeout_s=2 * ANSWER_S)
    bundle = make_bundle(verifier, tests={})
    bundle = replace(bundle, task=replace(bundle.task, image=test_image, workspace="/repo", memory_mib=256))
    change = Change((write("hoarding.py"),))
    verdict = await grade(GradingRequest(bundle, change, either_runtime, rng=random.Random(0)))
    assert verdict.reward == 0.0
    assert "memory" in verdict.reason


def group_of(scene: Scene, sandbox_id: str) -> dict[str, Path]:
    """Where its runtime watches it."""
    return {sandbox_id: hoarders_of(scene)._groups[sandbox_id]}


def hoarders_of(scene: Scene) -> watch.UncountedMemoryWatch:
    holder = scene.runtime._exit_tracker if hasattr(scene.runtime, "_exit_tracker") else scene.runtime
    return holder._uncounted_memory


@pytest.fixture
async def wide(either_runtime: EitherRuntime, test_image: str) -> AsyncIterator[Scene]:
    """An attacker with room for descriptors, and a sibling that answers afterwards."""
    spec = SandboxSpec(test_image, limits=SandboxLimits(memory_mib=256, pids=128, open_files=4096, disk_mib=96))
    async with either_runtime.scope(spec) as sibling:
        attacker = await either_runtime.create(spec)
        namespace = os.readlink(f"/proc/{await either_runtime.first_pid(attacker.id)}/ns/pid")
        yield Scene(either_runtime, test_image, attacker, sibling, namespace)
        await attacker.remove()
        assert text(await sibling.exec(["echo", "on"], timeout_s=ANSWER_S)) == "on\n"

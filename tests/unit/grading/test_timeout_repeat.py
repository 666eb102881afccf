"""A test command that does not end in time runs once more: the machine may have stalled, or the change may hang."""

import asyncio
import random
from collections.abc import Mapping

import pytest

from farm.core.task import ReportFormat, Verifier
from farm.grading import GradingRequest, Verdict, grade
from farm.tasks.bundle import TaskBundle
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.shell import FakeProcess, Program
from tests.support.farm.grading_values import (
    WORKSPACE,
    busybox,
    change,
    image,
    make_bundle,
    make_verifier,
    pretend_pytest,
    write,
)

LIMIT_S = 2.0
SHORT_S = 0.05
"""The limit of commands that never end."""
FIX = change(write("src/a.py", b"fixed\n"))
IMAGE = image({"src/a.py": b"bug\n", "tests/test_a.py": b"# old\n"})


async def report_tests(process: FakeProcess) -> int:
    fixed = process.files.read(f"{WORKSPACE}/src/a.py") == b"fixed\n"
    return await pretend_pytest(lambda _, name: name == "test_old" or fixed)(process)


async def end_well(_: FakeProcess) -> int:
    return 0


async def write_reward(process: FakeProcess) -> int:
    process.files.write("/logs/verifier/reward.txt", b"1\n", parents=True)
    return 0


VERIFIERS: Mapping[str, tuple[Verifier, Program]] = {
    "report": (make_verifier(), report_tests),
    "exit code": (make_verifier(report=ReportFormat.EXIT_CODE, command="pretend"), end_well),
    "reward file": (make_verifier(report=ReportFormat.REWARD_FILE, command="pretend"), write_reward),
}


class Stalling:
    """A test command that hangs in the runs of ``stalls``, counted from 0, and records the words of each run."""

    def __init__(self, stalls: range, program: Program = report_tests) -> None:
        self._stalls = stalls
        self._program = program
        self.runs: list[tuple[str, ...]] = []

    async def __call__(self, process: FakeProcess) -> int:
        self.runs.append(tuple(process.argv))
        if len(self.runs) - 1 in self._stalls:
            await asyncio.Event().wait()
        return await self._program(process)


def runtime(command: Program) -> FakeRuntime:
    return FakeRuntime(IMAGE, programs={"busybox": busybox, "pretend": command})


def bundle_of(verifier: Verifier) -> TaskBundle:
    return make_bundle(verifier, {"test.sh": b""} if verifier.report is ReportFormat.REWARD_FILE else None)


async def judge(command: Program, verifier: Verifier, *, limit_s: float = LIMIT_S, repeats: bool = True) -> Verdict:
    request = GradingRequest(
        bundle_of(verifier),
        FIX,
        runtime(command),
        rng=random.Random(1),
        verify_s=limit_s,
        repeats_timeout=repeats,
    )
    return await grade(request)


@pytest.mark.parametrize("name", VERIFIERS)
async def test_one_timeout_costs_no_reward(name: str) -> None:
    verifier, program = VERIFIERS[name]
    verdict = await judge(Stalling(range(1), program), verifier)
    assert (verdict.reward, verdict.timed_out) == (1.0, False), verdict.reason
    assert verdict.components["timeout_repeated"] == 1.0
    assert verdict.command_s >= LIMIT_S, "the time of both runs counts"


@pytest.mark.parametrize("name", VERIFIERS)
async def test_second_timeout_is_the_verdict(name: str) -> None:
    verifier, program = VERIFIERS[name]
    command = Stalling(range(100), program)
    verdict = await judge(command, verifier, limit_s=SHORT_S)
    assert (verdict.reward, verdict.reason) == (0.0, f"the test command did not end within {SHORT_S} s, twice")
    assert (verdict.unreported, verdict.timed_out) == (True, True)
    assert verdict.components["timeout_repeated"] == 1.0
    assert len(command.runs) == 2


async def test_quick_command_is_not_repeated() -> None:
    verdict = await judge(report_tests, VERIFIERS["report"][0])
    assert verdict.reward == 1.0
    assert "timeout_repeated" not in verdict.components


async def test_repeat_has_the_same_plan() -> None:
    """Otherwise a change could hang in a run whose decoy tests it does not recognize, and get other ones."""
    command = Stalling(range(1))
    await judge(command, VERIFIERS["report"][0])
    assert command.runs[0] == command.runs[1]


async def test_request_may_forbid_the_repeat() -> None:
    command = Stalling(range(100))
    verdict = await judge(command, VERIFIERS["report"][0], limit_s=SHORT_S, repeats=False)
    assert (verdict.reward, verdict.reason) == (0.0, f"the test command did not end within {SHORT_S} s")
    assert len(command.runs) == 1

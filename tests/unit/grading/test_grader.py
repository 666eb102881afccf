"""Tests of ``grade`` from change to verdict, with the in-memory sandbox and a scripted verifier."""

import asyncio
import random
import sys

import pytest

from farm.core.change import Change
from farm.core.task import GradingMode, ReportFormat, Verifier
from farm.grading import (
    Artifacts,
    Forfeit,
    GradingRequest,
    VerifierError,
    Work,
    WorkspaceBaseline,
    WrittenAnswer,
    grade,
)
from farm.grading.changes.protected_paths import split_change
from farm.grading.decoys.verifier_plan import build_verifier_plan
from farm.grading.reports.parsers import read_report
from farm.grading.verdict import decide
from farm.tasks.bundle import TaskBundle
from sandboxes.errors import LossCause, SandboxGone
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.shell import FakeProcess, Program
from tests.support.farm.grading_values import (
    WORKSPACE,
    busybox,
    change,
    image,
    junit,
    link,
    make_bundle,
    make_verifier,
    pretend_pytest,
    write,
)

PRISTINE = {"src/a.py": b"bug\n", "tests/test_a.py": b"# old\n", "conftest.py": b""}
FIX = write("src/a.py", b"fixed\n")


def passes(process: FakeProcess, name: str) -> bool:
    return name == "test_old" or process.files.read(f"{WORKSPACE}/src/a.py") == b"fixed\n"


def runtime(
    verifier: Program | None = None, *, lifetime: int | None = None, by: LossCause = LossCause.OUTSIDE
) -> FakeRuntime:
    programs = {"busybox": busybox, "pretend": verifier or pretend_pytest(passes)}
    return FakeRuntime(image(PRISTINE), programs=programs, lifetimes=[lifetime], by=by)


async def judge(made: Change, farm: FakeRuntime | None = None, bundle: TaskBundle | None = None) -> tuple[float, str]:
    farm = farm or runtime()
    verdict = await grade(GradingRequest(bundle or make_bundle(), made, farm, rng=random.Random(1)))
    assert not farm.sandboxes
    return verdict.reward, verdict.reason


async def test_gold_earns_reward_and_empty_change_none() -> None:
    assert await judge(change(FIX)) == (1.0, "all 2 expected tests passed")
    reward, reason = await judge(change())
    assert reward == 0.0
    assert reason.endswith("tests/test_a.py::test_new (failed)")


async def test_reports_are_parsed_outside_the_event_loop() -> None:
    called = set()
    sys.setprofile(lambda frame, event, argument: called.add(frame.f_code))
    try:
        assert (await judge(change(FIX)))[0] == 1.0
    finally:
        sys.setprofile(None)
    assert grade.__code__ in called
    assert called.isdisjoint(
        {read_report.__code__, decide.__code__, split_change.__code__, build_verifier_plan.__code__}
    )


async def test_verdict_describes_the_change() -> None:
    made = change(FIX, write("tests/test_a.py", b"def test_new(): pass\n"), write("conftest.py", b""))
    verdict = await grade(GradingRequest(make_bundle(), made, runtime(), rng=random.Random(1)))
    assert verdict.reward == 1.0
    assert verdict.protected_paths == ("tests/test_a.py",)
    assert verdict.components["protected_paths_touched"] == 1
    assert verdict.components["changed_files"] == 2
    assert "-bug\n+fixed\n" in verdict.patch
    assert "conftest" not in verdict.patch


async def test_baseline_is_used_only_for_its_image() -> None:
    farm = runtime()
    digest = await farm.digest_of("task:1")
    for of, known in ((digest, True), ("sha256:other", False)):
        emptied = WorkspaceBaseline(of, {})
        verdict = await grade(GradingRequest(make_bundle(), change(FIX), farm, rng=random.Random(1), baseline=emptied))
        assert verdict.reward == 1.0
        assert ("-bug" in verdict.patch) is not known


@pytest.mark.parametrize(
    "in_the_way", [write("tests/test_a.py/x"), link("tests", b"/etc"), link("tests/test_a.py", b"x")]
)
async def test_blocking_paths_are_cleared_for_tests(in_the_way: object) -> None:
    assert isinstance(in_the_way, type(FIX))
    assert await judge(change(FIX, in_the_way)) == (1.0, "all 2 expected tests passed")


async def test_change_that_does_not_apply_earns_nothing() -> None:
    reward, reason = await judge(change(write("src/a.py/b"), link("lib", b"/"), write("lib/x")))
    assert reward == 0.0
    assert reason.startswith("the change does not apply: ")


async def hang(_: FakeProcess) -> int:
    await asyncio.Event().wait()
    return 0


async def silent(_: FakeProcess) -> int:
    return 0


async def without_pytest(process: FakeProcess) -> int:
    process.streams.out += b"looking for it\n/usr/bin/python3: No module named pytest\n\n"
    return 1


async def garbled(process: FakeProcess) -> int:
    process.files.write(process.argv[1], b"<!DOCTYPE x>", parents=True)
    return 0


async def all_pass(process: FakeProcess) -> int:
    honest = pretend_pytest(lambda *_: True)
    await honest(process)
    content = process.files.read(process.argv[1])
    process.files.write(
        process.argv[1], content.replace(b"<failure", b"<system-out").replace(b"</failure", b"</system-out")
    )
    return 0


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        (hang, "the test command did not end within 0.05 s, twice"),
        (silent, "the test command wrote no report (exit code 0; no output)"),
        (
            without_pytest,
            "the test command wrote no report (exit code 1; /usr/bin/python3: No module named pytest)",
        ),
        (garbled, "the report declares a document type"),
        (all_pass, "a canary test that must fail was reported passed"),
    ],
)
async def test_invalid_report_earns_nothing(verifier: Program, reason: str) -> None:
    bundle = make_bundle(make_verifier(timeout_s=0.05 if verifier is hang else 60.0))
    assert await judge(change(FIX), runtime(verifier), bundle) == (0.0, reason)
    with pytest.raises(VerifierError, match="with nothing changed") as undone:
        await judge(change(), runtime(verifier), bundle)
    assert undone.value.retryable == (verifier is hang)  # it may have been the machine that was slow
    with pytest.raises(VerifierError, match="with nothing changed"):
        await judge(change(write("conftest.py", b"evil")), runtime(verifier), bundle)


async def test_timeout_starts_with_the_command() -> None:
    turns = asyncio.Semaphore()
    async with turns:
        waiting = asyncio.create_task(
            grade(
                GradingRequest(
                    make_bundle(), change(FIX), runtime(), verify_s=60, rng=random.Random(1), test_slots=turns
                )
            )
        )
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert done == set()
    verdict = await waiting
    assert verdict.reward == 1.0
    assert verdict.queue_s > 0
    assert verdict.queue_s + verdict.command_s <= verdict.total_s, "the wait is no part of the command's time"


@pytest.mark.parametrize(
    ("made", "lifetime", "by"),
    [
        (change(FIX), 4, LossCause.OUTSIDE),
        (change(FIX), 1, LossCause.INSIDE),
        (change(), 4, LossCause.INSIDE),
        (change(write("conftest.py", b"evil")), 4, LossCause.INSIDE),
    ],
    ids=["killed from outside", "before the change was there", "nothing changed", "nothing that travels"],
)
async def test_lost_sandbox_raises_without_reward(made: Change, lifetime: int, by: LossCause) -> None:
    with pytest.raises(SandboxGone):
        await judge(made, runtime(lifetime=lifetime, by=by))


@pytest.mark.parametrize("lifetime", [2, 4, 6])
async def test_sandbox_lost_by_change_earns_nothing(lifetime: int) -> None:
    reward, reason = await judge(change(FIX), runtime(lifetime=lifetime, by=LossCause.INSIDE))
    assert (reward, reason.partition(":")[0]) == (0.0, "the tests lost their sandbox")


@pytest.mark.parametrize("made", [change(FIX), change()])
async def test_out_of_memory_is_blamed_on_change(made: Change) -> None:
    started = asyncio.Event()

    async def eat(process: FakeProcess) -> int:
        started.set()
        return await hang(process)

    farm = runtime(eat)
    judging = asyncio.create_task(judge(made, farm))
    await started.wait()
    (sandbox,) = farm.sandboxes.values()
    await sandbox.die(by=LossCause.MEMORY)
    if made.empty:
        with pytest.raises(SandboxGone):
            await judging
    else:
        assert await judging == (0.0, "the tests ran out of memory")


@pytest.mark.parametrize(
    ("verifier", "remedy"),
    [
        (make_verifier(command="pytest {files}"), "lacks {report}"),
        (make_verifier(command="pytest --junitxml={report}"), "lacks {files}"),
        (make_verifier(fail_to_pass=(), pass_to_pass=()), "name some in fail_to_pass"),
        (make_verifier(report=ReportFormat.REWARD_FILE), "tests/test.sh"),
    ],
)
async def test_invalid_verifier_is_refused_before_boot(verifier: Verifier, remedy: str) -> None:
    farm = FakeRuntime({})
    with pytest.raises(VerifierError, match=remedy):
        await grade(GradingRequest(make_bundle(verifier), change(FIX), farm, rng=random.Random(1)))


@pytest.mark.parametrize("mode", [GradingMode.SHARED, GradingMode.SNAPSHOT])
async def test_shared_mode_requires_the_agents_sandbox(mode: GradingMode) -> None:
    with pytest.raises(VerifierError, match=f"graded by {mode.value}"):
        await judge(change(FIX), runtime(pretend_pytest(passes)), make_bundle(make_verifier(mode=mode)))


async def test_report_and_decoy_paths_are_random() -> None:
    seen: list[tuple[str, ...]] = []

    async def spy(process: FakeProcess) -> int:
        seen.append(tuple(process.argv[1:]))
        return await pretend_pytest(passes)(process)

    for seed in range(2):
        await grade(GradingRequest(make_bundle(), change(FIX), runtime(spy), rng=random.Random(seed)))
    assert seen[0][0] != seen[1][0]
    assert set(seen[0][1:]) & set(seen[1][1:]) == {"tests/test_a.py"}


def harbor(reward: bytes | None) -> tuple[TaskBundle, FakeRuntime]:
    async def score(process: FakeProcess) -> int:
        if reward is not None:
            process.files.write("/logs/verifier/reward.txt", reward)
        return 0

    verifier = make_verifier(report=ReportFormat.REWARD_FILE, command="score")
    files = {**image(PRISTINE)["task:1"], "/logs/verifier/reward.txt": b"1\n", "/tests/stale": b""}
    return make_bundle(verifier, {"test.sh": b"#!/bin/sh\n"}), FakeRuntime({"task:1": files}, programs={"score": score})


async def test_reward_file_of_fresh_sandbox_is_read() -> None:
    bundle, farm = harbor(b"0.5\n")
    assert await judge(change(FIX), farm, bundle) == (0.5, "the verifier gave 0.5")


@pytest.mark.parametrize("reward", [None, b"nan"])
async def test_earlier_reward_file_is_ignored(reward: bytes | None) -> None:
    bundle, farm = harbor(reward)
    assert (await judge(change(FIX), farm, bundle))[0] == 0.0
    bundle, farm = harbor(reward)
    with pytest.raises(VerifierError):
        await judge(change(), farm, bundle)


async def test_empty_junit_report_earns_nothing() -> None:
    async def empty(process: FakeProcess) -> int:
        process.files.write(process.argv[1], junit(), parents=True)
        return 0

    reward, reason = await judge(change(FIX), runtime(empty))
    assert (reward, "not reported" in reason) == (0.0, True)


async def test_forfeit_earns_zero_without_boot() -> None:
    farm = runtime()
    verdict = await grade(GradingRequest(make_bundle(), Forfeit("too large"), farm))
    assert (verdict.reward, verdict.reason, dict(verdict.components)) == (0.0, "too large", {"resolved": 0.0})
    assert verdict.total_s == 0.0


@pytest.mark.parametrize(
    ("work", "remedy"),
    [(WrittenAnswer("{}"), "asks for a change"), (Artifacts(Change()), "no verifier of its own")],
    ids=["answer", "artifacts"],
)
async def test_work_of_wrong_kind_is_refused(work: Work, remedy: str) -> None:
    with pytest.raises(VerifierError, match=remedy):
        await grade(GradingRequest(make_bundle(), work, runtime()))

"""Verifiers that give no result in the task's own image, told from changes that break a verifier, in real sandboxes."""

from dataclasses import replace

import pytest

from farm.core.change import Change
from farm.core.rollout import Origin, check
from farm.core.task import GradingMode, ReportFormat
from farm.episode import NodeServices, run_episode
from farm.grading import GradingRequest, UnfitTask, VerifierCheck, VerifierError, take_baseline
from farm.learner_sandboxes.grading import GradedTask, grade_work
from farm.learner_sandboxes.messages import GradeResult
from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.images import sandbox_spec
from tests.support.farm.episode_values import DONE, Scripted, create, order, say
from tests.support.farm.tiny import MENDED, TESTS, task
from tests.support.outside import EitherRuntime

pytestmark = pytest.mark.docker


def bundle(image: str, report: ReportFormat, command: str, script: bytes = b"") -> TaskBundle:
    made = task(image)
    verifier = replace(made.task.verifier, report=report, command=command)
    if not report.names_tests:
        verifier = replace(verifier, fail_to_pass=(), pass_to_pass=())
    tests = {"test.sh": BundleFile(script)} if report is ReportFormat.REWARD_FILE else made.tests
    return replace(made, task=replace(made.task, verifier=verifier), tests=tests)


REWARD = b"echo 0 > /logs/verifier/reward.txt\n"
UNFIT = {
    "no pytest": (ReportFormat.PYTEST, "nosuchtest --junitxml={report} {files}", b"", "nosuchtest"),
    "no command": (ReportFormat.EXIT_CODE, "nosuchtest", b"", "it ended with 127"),
    "no program": (ReportFormat.EXIT_CODE, "/etc", b"", "it ended with 126"),
    "no reward file": (ReportFormat.REWARD_FILE, "bash /tests/test.sh", b"nosuchtest\n", "wrote no reward file"),
}


@pytest.mark.parametrize("name", UNFIT)
async def test_image_unable_to_run_tests_is_unfit(tiny_image: str, any_runtime: EitherRuntime, name: str) -> None:
    report, command, script, why = UNFIT[name]
    sound, unfit = VerifierCheck(), bundle(tiny_image, report, command, script)
    for _ in range(2):
        with pytest.raises(UnfitTask, match=f"with nothing changed, .*{why}"):
            await sound.require(GradingRequest(unfit, Change(), any_runtime), "sha256:1")


@pytest.mark.parametrize("name", UNFIT)
async def test_episode_of_unfit_task_has_no_reward(tiny_image: str, any_runtime: EitherRuntime, name: str) -> None:
    report, command, script, why = UNFIT[name]
    policy = Scripted(say(create(MENDED, "tiny.py")), DONE)
    unfit = bundle(tiny_image, report, command, script)
    rollout = await run_episode(order(), unfit, policy, NodeServices("n1", any_runtime))
    check(rollout)
    assert rollout.reward is None, rollout.reason
    assert rollout.error is not None
    assert (rollout.error.origin, rollout.error.retryable) == (Origin.TASK, False)
    assert why in rollout.error.message


def never_passing(image: str) -> TaskBundle:
    made = task(image)
    return replace(made, tests={"tests/test_tiny.py": BundleFile(TESTS.replace(b"from tiny", b"from nosuchmodule"))})


async def grade_in_learner_sandbox(unfit: TaskBundle, runtime: EitherRuntime) -> GradeResult:
    async with runtime.scope(sandbox_spec(unfit.task, labels={})) as sandbox:
        baseline = await take_baseline(sandbox, unfit.task.workspace)
        await sandbox.write_file("/repo/tiny.py", MENDED.encode())
        graded = GradedTask(unfit, sandbox, baseline)
        return await grade_work(graded, NodeServices("n1", runtime), sandbox.fork, answer=None, lost=None)


@pytest.mark.parametrize("name", UNFIT)
async def test_learner_sandbox_of_unfit_task_is_not_judged(
    tiny_image: str, any_runtime: EitherRuntime, name: str
) -> None:
    report, command, script, why = UNFIT[name]
    result = await grade_in_learner_sandbox(bundle(tiny_image, report, command, script), any_runtime)
    assert not result.judged
    assert why in result.reason


async def test_tests_that_never_pass_are_not_judged(tiny_image: str, any_runtime: EitherRuntime) -> None:
    unfit = never_passing(tiny_image)
    policy = Scripted(say(create(MENDED, "tiny.py")), DONE)
    rollout = await run_episode(order(), unfit, policy, NodeServices("n1", any_runtime))
    assert rollout.error is not None
    assert (rollout.reward, rollout.error.origin) == (None, Origin.TASK)
    result = await grade_in_learner_sandbox(unfit, any_runtime)
    assert not result.judged
    assert "no test passes that should" in result.reason


async def test_episode_that_breaks_its_verifier_earns_nothing(tiny_image: str, any_runtime: EitherRuntime) -> None:
    fit = bundle(tiny_image, ReportFormat.EXIT_CODE, "python3 tiny.py || exit 127")
    policy = Scripted(say(create("raise SystemExit(1)\n", "tiny.py")), DONE)
    rollout = await run_episode(order(), fit, policy, NodeServices("n1", any_runtime))
    check(rollout)
    assert (rollout.reward, rollout.error) == (0.0, None), rollout.reason


FIT = {
    "tests that fail": (ReportFormat.EXIT_CODE, "exit 3", b""),
    "a reward of 0": (ReportFormat.REWARD_FILE, "bash /tests/test.sh", REWARD),
}


@pytest.mark.parametrize("mode", [GradingMode.PATCH, GradingMode.SNAPSHOT, GradingMode.SHARED])
@pytest.mark.parametrize("name", FIT)
async def test_tests_failing_without_change_are_fit(
    tiny_image: str, any_runtime: EitherRuntime, name: str, mode: GradingMode
) -> None:
    fit = bundle(tiny_image, *FIT[name])
    fit = replace(fit, task=replace(fit.task, verifier=replace(fit.task.verifier, mode=mode)))
    await VerifierCheck().require(GradingRequest(fit, Change(), any_runtime), "sha256:1")


async def test_timed_out_verifier_check_is_retryable(tiny_image: str, any_runtime: EitherRuntime) -> None:
    slow, sound = bundle(tiny_image, ReportFormat.EXIT_CODE, "sleep 60"), VerifierCheck()
    with pytest.raises(VerifierError, match="did not end") as caught:
        await sound.require(GradingRequest(slow, Change(), any_runtime, verify_s=0.2), "sha256:1")
    assert caught.value.retryable
    quick = replace(slow, task=replace(slow.task, verifier=replace(slow.task.verifier, command="exit 1")))
    await sound.require(GradingRequest(quick, Change(), any_runtime), "sha256:1")

"""Verifiers that give no result in the task's own image, told from changes that break a verifier, in real sandboxes."""

from dataclasses import replace

import pytest

from farm.core.change import Change
from farm.core.task import GradingMode, ReportFormat
from farm.grading import GradingRequest, UnfitTask, VerifierCheck, VerifierError
from farm.tasks.bundle import BundleFile, TaskBundle
from tests.support.farm.tiny import task
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

"""A verifier that does not end runs once more, in a fresh sandbox if the mode has one, in real sandboxes."""

from dataclasses import replace

import pytest

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import Artifact, GradingMode, ReportFormat, Separate, Verifier
from farm.grading import Artifacts, GradingRequest, Verdict, apply_change, grade
from farm.tasks.bundle import BundleFile, TaskBundle
from farm.tasks.images import sandbox_spec
from sandboxes.runtimes.docker.runtime import DockerRuntime
from tests.support.farm.tiny import task
from tests.support.sandboxes.conformance import living

pytestmark = pytest.mark.docker

LIMIT_S = 1.0
HANG = b"import time\ntime.sleep(600)\n"


def with_verifier(bundle: TaskBundle, verifier: Verifier) -> TaskBundle:
    return replace(bundle, task=replace(bundle.task, verifier=verifier))


async def grade_hanging_change(image: str, mode: GradingMode, runtime: DockerRuntime) -> Verdict:
    bundle = task(image)
    bundle = with_verifier(bundle, replace(bundle.task.verifier, mode=mode))
    change = Change((FileChange("tiny.py", ChangeKind.WRITE, HANG),))
    async with runtime.scope(sandbox_spec(bundle.task, labels={})) as agent_sandbox:
        await apply_change(agent_sandbox, bundle.task.workspace, change)
        return await grade(GradingRequest(bundle, change, runtime, verify_s=LIMIT_S, agent_sandbox=agent_sandbox))


@pytest.mark.parametrize("mode", [GradingMode.PATCH, GradingMode.SNAPSHOT])
async def test_hanging_tests_run_twice(tiny_image: str, docker_runtime: DockerRuntime, mode: GradingMode) -> None:
    verdict = await grade_hanging_change(tiny_image, mode, docker_runtime)
    assert (verdict.reward, verdict.reason) == (0.0, "the test command did not end within 1 s, twice")
    assert verdict.components["timeout_repeated"] == 1.0
    assert verdict.command_s >= 2 * LIMIT_S
    assert await living(docker_runtime) == set()


async def test_hanging_tests_in_the_agents_sandbox_run_once(tiny_image: str, docker_runtime: DockerRuntime) -> None:
    verdict = await grade_hanging_change(tiny_image, GradingMode.SHARED, docker_runtime)
    assert (verdict.reward, verdict.reason) == (0.0, "the test command did not end within 1 s")
    assert "timeout_repeated" not in verdict.components


async def test_hanging_separate_verifier_runs_twice(tiny_image: str, docker_runtime: DockerRuntime) -> None:
    bundle = task(tiny_image)
    separate = Separate(tiny_image, "/repo", (Artifact("/repo/tiny.py"),), (), False, 1.0, 512, 1024, ())
    verifier = replace(
        bundle.task.verifier,
        mode=GradingMode.SEPARATE,
        report=ReportFormat.REWARD_FILE,
        command="python3 /repo/tiny.py; echo 1 > /logs/verifier/reward.txt",
        fail_to_pass=(),
        pass_to_pass=(),
        separate=separate,
    )
    bundle = replace(with_verifier(bundle, verifier), tests={"test.sh": BundleFile(b"")})
    work = Artifacts(Change((FileChange("repo/tiny.py", ChangeKind.WRITE, HANG),)))
    verdict = await grade(GradingRequest(bundle, work, docker_runtime, verify_s=LIMIT_S))
    assert (verdict.reward, verdict.reason) == (0.0, "the test command did not end within 1 s, twice")
    assert verdict.components["timeout_repeated"] == 1.0
    assert verdict.command_s >= 2 * LIMIT_S

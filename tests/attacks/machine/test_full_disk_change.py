"""A policy fills its disk with its change, so that the grader has no room for it and the machine takes the blame."""

from dataclasses import replace

import pytest

from farm.core.change import Change
from farm.core.task import MIN_STORAGE_MIB, ReportFormat
from farm.grading import GradingRequest, Verdict, grade, take_baseline, take_change
from sandboxes import SandboxLimits, SandboxSpec
from sandboxes.errors import RuntimeUnavailable
from tests.support.attacks.project import WORKSPACE, make_task
from tests.support.outside import EitherRuntime

TOO_SMALL_MIB = 62
FILL = "head -c 62M /dev/urandom > fill"


async def filled(runtime: EitherRuntime, image: str) -> Change:
    """Return the change of a policy that wrote nearly as much as a change may hold."""
    async with runtime.scope(
        SandboxSpec(image, workdir=WORKSPACE, limits=SandboxLimits(disk_mib=MIN_STORAGE_MIB))
    ) as sandbox:
        baseline = await take_baseline(sandbox, WORKSPACE)
        result = await sandbox.shell(FILL, timeout_s=60)
        assert result.exit_code == 0, result.stdout.head
        return await take_change(sandbox, WORKSPACE, baseline)


async def judged(runtime: EitherRuntime, image: str, change: Change, storage_mib: int) -> Verdict:
    bundle = make_task(image, ReportFormat.PYTEST)
    bundle = replace(bundle, task=replace(bundle.task, storage_mib=storage_mib))
    return await grade(GradingRequest(bundle, change, runtime))


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_change_that_fills_the_disk_is_judged(either_runtime: EitherRuntime, project_image: str) -> None:
    change = await filled(either_runtime, project_image)
    with pytest.raises(RuntimeUnavailable):
        await judged(either_runtime, project_image, change, TOO_SMALL_MIB)
    verdict = await judged(either_runtime, project_image, change, MIN_STORAGE_MIB)
    assert verdict.reward == 0.0

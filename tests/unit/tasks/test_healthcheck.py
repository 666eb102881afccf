"""A healthcheck is asked until it holds, or has failed too often; what a task says of variables reaches the sandbox."""

from dataclasses import replace

import pytest

from farm.core.task import Healthcheck
from farm.tasks import TaskError, await_health, sandbox_spec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.shell import FakeProcess
from tests.support.farm.grading_values import image, make_bundle


async def ask(check: Healthcheck | None, holds_after: int) -> int:
    """Return the number of checks in a sandbox that passes after ``holds_after`` failures."""
    asked = 0

    async def program(process: FakeProcess) -> int:
        nonlocal asked
        asked += 1
        process.streams.out += process.env.get("STATE", "no state").encode()
        return 0 if asked > holds_after else 3

    task = replace(make_bundle().task, healthcheck=check, env=(("STATE", "starting"),))
    runtime = FakeRuntime(image({"a": b""}), programs={"ready": program})
    async with runtime.scope(sandbox_spec(task, labels={})) as sandbox:
        await await_health(sandbox, task)
    return asked


CHECK = Healthcheck("ready", interval_s=0.001, timeout_s=5, start_period_s=0, retries=3)


async def test_healthcheck_repeats_until_it_passes() -> None:
    assert await ask(None, 0) == 0
    assert await ask(CHECK, 0) == 1
    assert await ask(CHECK, 2) == 3
    assert await ask(replace(CHECK, start_period_s=60), 20) == 21


async def test_failing_healthcheck_raises_task_error() -> None:
    with pytest.raises(TaskError, match=r"demo: environment\.healthcheck: .* ended with 3 .*\(starting\)"):
        await ask(CHECK, 3)

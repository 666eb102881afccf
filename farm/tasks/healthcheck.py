"""A task's healthcheck: no sandbox is used before it holds."""

import asyncio
import time

from farm.core.task import Task
from farm.tasks.errors import TaskError
from sandboxes.interface import Sandbox

SHELL = ("/.farm/bin/bash", "-c")


async def await_health(sandbox: Sandbox, task: Task) -> None:
    """Return when the task's healthcheck holds, at once where it has none. Raises TaskError where it does not."""
    check = task.healthcheck
    if check is None:
        return
    patient_until = time.monotonic() + check.start_period_s
    failures = 0
    while True:
        result = await sandbox.exec(
            (*SHELL, check.command), cwd=task.workspace, timeout_s=check.timeout_s, merge_stderr=True
        )
        if result.exit_code == 0:
            return
        failures += time.monotonic() >= patient_until
        if failures >= check.retries:
            how = "took too long" if result.timed_out else f"ended with {result.exit_code}"
            said = (result.stdout.tail or result.stdout.head).decode(errors="replace")[-200:]
            raise TaskError(
                task.id,
                f"its healthcheck {how} in a fresh sandbox ({said.strip()})",
                "start what it asks for in the image; what an ENTRYPOINT or CMD would start does not run here",
                key="environment.healthcheck",
            )
        await asyncio.sleep(check.interval_s)

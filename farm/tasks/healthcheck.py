"""Wait for a task's healthcheck before its sandbox is used."""

import asyncio
import time

from farm.core.task import Task
from farm.tasks.errors import TaskError
from sandboxes.interface import Sandbox

SHELL = ("/.farm/bin/bash", "-c")


async def await_health(sandbox: Sandbox, task: Task) -> None:
    """Return as soon as the task's healthcheck passes, at once if it has none. Raises TaskError if it keeps failing."""
    check = task.healthcheck
    if check is None:
        return
    start_period_end = time.monotonic() + check.start_period_s
    failures = 0
    while True:
        result = await sandbox.exec(
            (*SHELL, check.command), cwd=task.workspace, timeout_s=check.timeout_s, merge_stderr=True
        )
        if result.exit_code == 0:
            return
        failures += time.monotonic() >= start_period_end
        if failures >= check.retries:
            outcome = "took too long" if result.timed_out else f"ended with {result.exit_code}"
            output = (result.stdout.tail or result.stdout.head).decode(errors="replace")[-200:]
            raise TaskError(
                task.id,
                f"its healthcheck {outcome} in a fresh sandbox ({output.strip()})",
                "provide in the image what it asks for; what ENTRYPOINT or CMD would start does not run here",
                key="environment.healthcheck",
            )
        await asyncio.sleep(check.interval_s)

"""Collects from the agent's sandbox what will be judged: a change of the workspace, or artifacts."""

import asyncio

from farm.core.change import Change
from farm.core.task import Task
from farm.grading.changes.capture import WorkspaceBaseline, take_change
from farm.grading.separate_verifier import collect, take_artifacts
from sandboxes.interface import Sandbox


async def collect_change(
    sandbox: Sandbox, task: Task, baseline: WorkspaceBaseline | None, *, limit_s: float, step: int = 0
) -> Change:
    """Return the change of the workspace, or the artifacts of the task if its verifier runs in a separate sandbox.

    ``baseline`` is required for a change of the workspace. ``step`` is passed to the task's hooks. ``limit_s`` bounds
    the reading; the task's hooks have their own limits.

    Raises ChangeTooLarge or PathError if the agent is responsible, and TimeoutError after ``limit_s``.
    """
    separate = task.verifier.separate
    if separate is not None:
        await collect(sandbox, task.workspace, separate, step=step)
    async with asyncio.timeout(limit_s):
        if separate is not None:
            return await take_artifacts(sandbox, separate)
        assert baseline is not None  # the episode took it before the agent started
        return await take_change(sandbox, task.workspace, baseline)

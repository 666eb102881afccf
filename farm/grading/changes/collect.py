"""What is judged, out of the sandbox where the policy worked: a change of the workspace, or artifacts."""

import asyncio

from farm.core.change import Change
from farm.core.task import Task
from farm.grading.changes.capture import WorkspaceBaseline, take_change
from farm.grading.separate_verifier import collect, take_artifacts
from sandboxes.interface import Sandbox


async def collect_change(
    sandbox: Sandbox, task: Task, baseline: WorkspaceBaseline | None, *, limit_s: float, step: int = 0
) -> Change:
    """Of ``task``, or of its ``step``. ``baseline``: of the workspace, where that is what is looked at.

    Raises ChangeTooLarge and PathError for what the agent has only itself to blame for, and TimeoutError where reading
    takes more than ``limit_s``; hooks of the task have their own limits beside that.
    """
    separate = task.verifier.separate
    if separate is not None:
        await collect(sandbox, task.workspace, separate, step=step)
    async with asyncio.timeout(limit_s):
        if separate is not None:
            return await take_artifacts(sandbox, separate)
        assert baseline is not None  # walked before anybody worked there
        return await take_change(sandbox, task.workspace, baseline)

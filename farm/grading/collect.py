"""Take the work of a policy out of its sandbox."""

import asyncio

from farm.core.change import Change
from farm.core.task import Task
from farm.grading.artifacts import run_collect_hooks, take_artifacts
from farm.grading.changes.capture import WorkspaceBaseline, take_change
from farm.grading.work import Artifacts
from sandboxes.interface import Sandbox


async def collect_work(
    sandbox: Sandbox, task: Task, baseline: WorkspaceBaseline | None, *, limit_s: float, step: int = 0
) -> Change | Artifacts:
    """Return the artifacts that ``task`` names for its own verifier, or else the change of the workspace.

    ``step`` is the number of the step that ``task`` stands for. ``baseline``: of the workspace, before anybody worked
    there; artifacts need none. Raises ChangeTooLarge and PathError for what the agent itself did, and TimeoutError if
    reading takes more than ``limit_s``. Hooks of the task have their own limits beside that.
    """
    separate = task.verifier.separate
    if separate is not None:
        await run_collect_hooks(sandbox, task.workspace, separate, step=step)
    async with asyncio.timeout(limit_s):
        if separate is not None:
            return await take_artifacts(sandbox, separate)
        assert baseline is not None  # taken before anybody worked there
        return await take_change(sandbox, task.workspace, baseline)

"""The task that a request for a sandbox names: of the newest run that has it, or of a task set."""

import asyncio
from pathlib import Path

from fastapi import Request

from farm.config import Config
from farm.core.run import TaskRef
from farm.gateway.auth import Role
from farm.gateway.errors import ApiError
from farm.gateway.tasksets import Prepare, TasksetError, locate
from farm.schemas.problems import ProblemType
from farm.schemas.sandbox_requests import CreateSandboxBody
from farm.store import Store
from farm.tasks import TaskError
from farm.tasks.validation_file import refuse_unvalidated

MOST_RUNS_SEARCHED = 200


async def find_task(request: Request, body: CreateSandboxBody, role: Role) -> TaskRef:
    """Return the task of a request. Its bundle is in the store. Raises ApiError."""
    assert body.task_id is not None
    if body.taskset is None:
        return await _of_runs(request, body.task_id)
    if Path(body.taskset).is_absolute() and role < Role.OPERATOR:
        detail = "a learner names a task set by its name; an absolute path needs the role operator"
        raise ApiError(ProblemType.FORBIDDEN, detail)
    try:
        return await _of_taskset(request, body, body.task_id)
    except (TasksetError, TaskError) as error:
        raise ApiError(ProblemType.TASKSET, str(error)) from None


async def _of_runs(request: Request, task_id: str) -> TaskRef:
    store: Store = request.app.state.store
    for run_id in (await store.run_ids())[:MOST_RUNS_SEARCHED]:
        run = await store.get_run(run_id)
        found = next((task for task in run.spec.tasks if task.id == task_id), None) if run else None
        if found is not None:
            return found
    raise ApiError(ProblemType.NOT_FOUND, f"no run has a task {task_id}; name the taskset that holds it")


async def _of_taskset(request: Request, body: CreateSandboxBody, task_id: str) -> TaskRef:
    config: Config = request.app.state.config
    store: Store = request.app.state.store
    prepare: Prepare = request.app.state.prepare
    assert body.taskset is not None
    path = locate(body.taskset, config.tasksets)
    async with request.app.state.preparing:
        tasks = await asyncio.to_thread(prepare, path, body.tools)
    found = next(((task, bundle) for task, bundle in tasks if task.id == task_id), None)
    if found is None:
        held = ", ".join(task.id for task, _ in tasks[:10])
        raise TasksetError(f"taskset {path} holds no task {task_id}; it holds {held or 'none'}")
    task, bundle = found
    if not body.unvalidated:
        await asyncio.to_thread(refuse_unvalidated, path, {task.id: task.digest})
    await store.put_bundle(task.digest, bundle)
    return task

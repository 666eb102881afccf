"""The task that a request for a sandbox or a group names: of the newest run that has it, or of a task set."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from fastapi import Request

from farm.config import Config
from farm.core.run import TaskRef
from farm.gateway.auth import Role
from farm.gateway.errors import ApiError
from farm.gateway.tasksets import PreparedTasksets, TasksetError, locate
from farm.schemas.problems import ProblemType
from farm.store import Store
from farm.tasks import TaskError
from farm.tasks.validation_file import refuse_unvalidated

MOST_RUNS_SEARCHED = 200


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task as a request names it. ``taskset`` None: the newest run that has the task."""

    task_id: str
    taskset: str | None
    tools: tuple[str, ...] = ()
    unvalidated: bool = False


async def find_task(request: Request, named: NamedTask, role: Role) -> TaskRef:
    """Return the task of a request. Its bundle is in the store. Raises ApiError."""
    if named.taskset is None:
        return await _of_runs(request, named.task_id)
    if Path(named.taskset).is_absolute() and role < Role.OPERATOR:
        detail = "a learner names a task set by its name; an absolute path needs the role operator"
        raise ApiError(ProblemType.FORBIDDEN, detail)
    try:
        return await _of_taskset(request, named, named.taskset)
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


async def _of_taskset(request: Request, named: NamedTask, taskset: str) -> TaskRef:
    config: Config = request.app.state.config
    prepared: PreparedTasksets = request.app.state.prepared
    path = locate(taskset, config.tasksets)
    tasks = await prepared.tasks(path, named.tools)
    task = tasks.get(named.task_id)
    if task is None:
        held = ", ".join(list(tasks)[:10])
        raise TasksetError(f"taskset {path} holds no task {named.task_id}; it holds {held or 'none'}")
    if not named.unvalidated:
        await asyncio.to_thread(refuse_unvalidated, path, {task.id: task.digest})
    return task

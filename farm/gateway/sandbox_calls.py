"""Learner sandboxes in the gateway: start one, find its node, and turn refusals into problem documents."""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from fastapi import Request

from farm.gateway.errors import ApiError, to_api_error
from farm.gateway.routes.runs import ask_scheduler
from farm.learner_sandboxes import (
    CreateSandbox,
    NodeAway,
    RefusalKind,
    SandboxHost,
    SandboxNodes,
    SandboxRefused,
    SandboxState,
)
from farm.scheduler.client import SchedulerClient, SchedulerUnavailable
from farm.schemas.problems import ProblemType
from farm.store import SandboxRecord, Store

Result = TypeVar("Result")
_RETRY = {"Retry-After": "1"}
_KINDS: Mapping[RefusalKind, ProblemType] = {
    RefusalKind.UNKNOWN: ProblemType.SANDBOX_GONE,
    RefusalKind.GONE: ProblemType.SANDBOX_GONE,
    RefusalKind.UNKNOWN_TOOL: ProblemType.UNKNOWN_TOOL,
    RefusalKind.NOT_AVAILABLE: ProblemType.NOT_AVAILABLE,
    RefusalKind.TOO_LARGE: ProblemType.TOO_LARGE,
    RefusalKind.PATH: ProblemType.PATH_REFUSED,
    RefusalKind.SPEC: ProblemType.SANDBOX_REFUSED,
    RefusalKind.NO_SLOT: ProblemType.NO_SLOT,
    RefusalKind.BUSY: ProblemType.SANDBOX_BUSY,
    RefusalKind.MACHINE: ProblemType.NODE_UNAVAILABLE,
}


def new_sandbox_id(request: Request) -> str:
    """Return an id that a repeated request with the same idempotency key gets again."""
    return f"sb-{getattr(request.state, 'once', secrets.token_hex(6))[:12]}"


async def find_record(request: Request, sandbox_id: str) -> SandboxRecord:
    store: Store = request.app.state.store
    record = await store.sandboxes.get(sandbox_id)
    if record is None:
        detail = f"there is no sandbox {sandbox_id}; GET /v1/sandboxes lists all"
        raise ApiError(ProblemType.NOT_FOUND, detail)
    return record


async def start(request: Request, order: CreateSandbox, *, wait_s: float, node_id: str = "") -> SandboxState:
    """Hold a slot for a sandbox and start it there. ``node_id``: the node that has to run it; empty: any.

    A repeated call with the same id starts no second sandbox.
    """
    store: Store = request.app.state.store
    scheduler: SchedulerClient = request.app.state.scheduler
    record = await store.sandboxes.get(order.sandbox_id)
    is_new = record is None
    if record is None:
        placing = scheduler.place_sandbox(order.sandbox_id, order.task, wait_s, node_id)
        placement = await ask_scheduler(placing, wait_s=wait_s)
        if not placement.node_id:
            detail = f"{placement.why}; ask again, or wait for a slot with wait_s"
            raise ApiError(ProblemType.NO_SLOT, detail, headers=_RETRY)
        record = SandboxRecord(order.sandbox_id, placement.node_id, order.task)
        await store.sandboxes.put(record)
    try:
        return await on_node(request, record, lambda host: host.create(order))
    except ApiError as refused:
        # After a node was away the record stays: the node may have started the sandbox, and a repeated call finds it.
        if is_new and refused.kind is not ProblemType.NODE_UNAVAILABLE:
            await store.sandboxes.delete(order.sandbox_id)
            await _release(scheduler, order.sandbox_id)
        raise


async def _release(scheduler: SchedulerClient, sandbox_id: str) -> None:
    try:
        await ask_scheduler(scheduler.release_sandbox(sandbox_id))
    except SchedulerUnavailable:  # the heartbeats of the node free the slot, later
        return


async def on_node(request: Request, record: SandboxRecord, call: Callable[[SandboxHost], Awaitable[Result]]) -> Result:
    """Call the node of a sandbox. Raises ApiError for a refusal."""
    nodes: SandboxNodes = request.app.state.sandbox_nodes
    try:
        return await call(await nodes.host(record.node_id))
    except SandboxRefused as error:
        raise _refusal(error, record) from None
    except NodeAway as error:
        if error.for_good:
            raise ApiError(ProblemType.SANDBOX_GONE, f"the sandbox {record.sandbox_id} is gone: {error}") from None
        raise ApiError(ProblemType.NODE_UNAVAILABLE, str(error), headers=_RETRY) from None


def _refusal(error: SandboxRefused, record: SandboxRecord) -> ApiError:
    kind, detail = _KINDS[error.kind], error.detail
    if error.kind is RefusalKind.UNKNOWN:
        detail = f"the sandbox {record.sandbox_id} is gone: the agent of the node {record.node_id} has restarted"
    if kind is ProblemType.SANDBOX_GONE:
        detail = f"{detail}; create another"
    headers = _RETRY if error.kind in (RefusalKind.NO_SLOT, RefusalKind.BUSY, RefusalKind.MACHINE) else {}
    return ApiError(kind, detail, headers=headers)


async def counted(request: Request, call: str, work: Awaitable[Result]) -> Result:
    """Await a call of a sandbox, and count its outcome."""
    outcome = ProblemType.INTERNAL.value
    try:
        result = await work
        outcome = "ok"
        return result
    except Exception as error:  # every outcome is counted, and then raised again
        outcome = to_api_error(error).kind.value
        raise
    finally:
        request.app.state.series.sandbox_calls.labels(call, outcome).inc()

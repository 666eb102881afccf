"""Short ways to say runs, beats and reports in the scheduler's tests."""

from dataclasses import replace

from farm.core.rollout import Failure, Origin, Split, Status, StopReason
from farm.core.run import EpisodeAssignment, EpisodeLimits, EpisodeReport, PolicySpec, RunSpec, TaskRef
from farm.core.run_options.branching import Branching
from farm.core.run_options.groups import DEFAULT_GROUP_OPTIONS, GroupOptions
from farm.scheduler.messages import EpisodeEnded, Heartbeat, Load, PressureStall

NOP = PolicySpec("nop")
INFRA = Failure(Origin.INFRA, "SandboxGone", "the sandbox is gone", retryable=True)


def task(name: str = "t", *, memory_mib: int = 100, cpus: float = 1.0) -> TaskRef:
    return TaskRef(name, f"digest-{name}", f"image-{name}", memory_mib, cpus)


def run_spec(
    run_id: str = "r",
    *,
    groups: int = 1,
    group_size: int = 1,
    tasks: tuple[TaskRef, ...] | None = None,
    concurrency: int | None = None,
    max_attempts: int = 3,
    policy: PolicySpec = NOP,
    options: GroupOptions = DEFAULT_GROUP_OPTIONS,
    branching: Branching | None = None,
    split: Split = Split.TRAIN,
) -> RunSpec:
    return RunSpec(
        run_id,
        tasks or (task(),),
        policy,
        group_size,
        groups,
        EpisodeLimits(),
        concurrency=concurrency,
        max_attempts=max_attempts,
        options=options,
        branching=branching,
        split=split,
    )


def beat(
    node_id: str,
    *,
    slots: int = 2,
    running: dict[str, int] | None = None,
    incarnation: str = "1",
    memory_mib: int = 100_000,
    available_mib: int | None = None,
    images: frozenset[str] | None = None,
    load: Load | None = None,
    pressure: PressureStall | None = None,
    draining: bool = False,
    join: str = "",
    sandboxes: dict[str, int] | None = None,
) -> Heartbeat:
    """``available_mib`` None: all of its memory."""
    return Heartbeat(
        node_id,
        incarnation,
        slots,
        cpus=8.0,
        memory_mib=memory_mib,
        memory_available_mib=memory_mib if available_mib is None else available_mib,
        load=load or Load(),
        running=running or {},
        images=images,
        draining=draining,
        join=join,
        pressure=pressure or PressureStall(),
        sandboxes=sandboxes or {},
    )


def solved(node_id: str, order: EpisodeAssignment, *, reward: float = 1.0) -> EpisodeEnded:
    return EpisodeEnded(node_id, _report(order, Status.COMPLETED, StopReason.AGENT_DONE, reward, None, True))


def failed(node_id: str, order: EpisodeAssignment, failure: Failure = INFRA) -> EpisodeEnded:
    return EpisodeEnded(node_id, _report(order, Status.FAILED, StopReason.ERROR, None, failure, order.final))


def stopped(node_id: str, order: EpisodeAssignment) -> EpisodeEnded:
    return EpisodeEnded(node_id, _report(order, Status.ABORTED, StopReason.CANCELLED, None, None, False))


def tree_ended(node_id: str, order: EpisodeAssignment, done: int) -> list[EpisodeEnded]:
    """Return the reports of a tree of which the leaf number ``done`` fails; none fails if there is no such leaf.

    As on a node, a failure that is not the last attempt ends the tree.
    """
    events: list[EpisodeEnded] = []
    for number, index in enumerate(order.leaves):
        leaf = order.leaf(index)
        event = failed(node_id, leaf) if number == done else solved(node_id, leaf)
        events.append(replace(event, report=replace(event.report, tree=order.rollout_id, continues=True)))
        if not event.report.published:
            break
    events[-1] = replace(events[-1], report=replace(events[-1].report, continues=False))
    return events


def _report(
    order: EpisodeAssignment,
    status: Status,
    why: StopReason,
    reward: float | None,
    failure: Failure | None,
    published: bool,
) -> EpisodeReport:
    return EpisodeReport(
        order.rollout_id,
        order.attempt,
        order.run_id,
        order.group_id,
        order.task.id,
        status,
        why,
        reward,
        failure,
        published,
        {},
    )

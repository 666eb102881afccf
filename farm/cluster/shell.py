"""The scheduler at work: the state machine of the core, its clock, the store behind it and the nodes before it."""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from farm.core.events import (
    Command,
    EpisodeEnded,
    Event,
    PublishFailure,
    RunCancelled,
    RunFinished,
    RunPaused,
    RunResumed,
    RunSubmitted,
    StartEpisode,
    StopEpisode,
    Tick,
)
from farm.core.fleet import Node, SchedulerSettings
from farm.core.orders import EpisodeOrder, RunSpec
from farm.core.rollout import Failure, Rollout
from farm.core.scheduler import Scheduler
from farm.core.status import FarmStatus, NodeStatus, RunStatus
from farm.metrics import FarmMetrics, Snapshot
from farm.rollout import report
from farm.rollout.record import Findings, compose
from farm.store import RunRecord, RunState, StoreError, StoreUnavailable

NodeCommand = StartEpisode | StopEpisode
Send = Callable[[str, Sequence[NodeCommand]], None]
"""Hand commands to a node, in order, without waiting; whoever learns that the node is dead tells NodeLost."""

TICK_S = 1.0
RESYNC_S = 15.0
HOLD_S = 4.0
"""So long a rebuilt scheduler lets the nodes say what they run: a few beats."""

_log = logging.getLogger(__name__)


class RunStore(Protocol):
    async def list_runs(self) -> tuple[RunRecord, ...]: ...

    async def accepted(self, run_id: str) -> Mapping[str, set[int]]: ...

    async def set_run_state(self, run_id: str, state: RunState | str, reason: str = "") -> bool: ...

    async def publish(self, rollout: Rollout) -> bool: ...


class SchedulerShell:
    """Knows nothing of Ray. The store is the truth on runs; every ``RESYNC_S`` what was missed is caught up with."""

    def __init__(self, store: RunStore, send: Send, *, settings: SchedulerSettings | None = None) -> None:
        self._store = store
        self._send = send
        self._settings = settings
        self._scheduler = Scheduler(settings)
        self._metrics = FarmMetrics()
        self._ended: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Take up the runs that the store says go on. Raises StoreUnavailable."""
        runs = [record for record in await self._store.list_runs() if not record.state.ended]
        if runs:
            self._scheduler = Scheduler(self._settings, hold_until=time.monotonic() + HOLD_S)
        for record in runs:
            await self.submit(record.spec, paused=record.state is RunState.PAUSED)
        self._spawn(self._tick())
        self._spawn(self._resync())

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def tell(self, events: Sequence[Event]) -> None:
        """Take in what happened, and order what follows from it."""
        outgoing: defaultdict[str, list[NodeCommand]] = defaultdict(list)
        for event in events:
            if isinstance(event, EpisodeEnded):
                self._metrics.observe(event.report, self._scheduler.held_s(event, time.monotonic()))
            began = time.perf_counter()
            commands = self._scheduler.handle(event, time.monotonic())
            self._metrics.decided(time.perf_counter() - began)
            for command in commands:
                self._carry_out(command, outgoing)
        for node_id, ordered in outgoing.items():
            self._send(node_id, ordered)

    def _carry_out(self, command: Command, outgoing: defaultdict[str, list[NodeCommand]]) -> None:
        match command:
            case StartEpisode() | StopEpisode():
                outgoing[command.node_id].append(command)
            case PublishFailure(order, failure):
                self._spawn(self._publish_failure(order, failure))
            case RunFinished(run_id):
                self._ended.add(run_id)
                self._spawn(self._finish(run_id))

    # Runs; the store knows of each before the scheduler does

    async def submit(self, spec: RunSpec, *, paused: bool = False) -> None:
        """Raises StoreUnavailable. A run that is known, or has ended, is left as it is."""
        accepted = await self._store.accepted(spec.run_id)
        if spec.run_id not in self._ended:
            self.tell([RunSubmitted(spec, accepted, paused)])

    def pause(self, run_id: str) -> None:
        self.tell([RunPaused(run_id)])

    def resume(self, run_id: str) -> None:
        self.tell([RunResumed(run_id)])

    def cancel(self, run_id: str) -> None:
        self._ended.add(run_id)
        self.tell([RunCancelled(run_id)])

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(RESYNC_S)
            try:
                await self.catch_up()
            except StoreError as error:
                _log.warning("the runs were not compared with the store: %s", error)

    async def catch_up(self) -> None:
        """The gateway writes a run's state before it tells us; what it could not tell is seen here."""
        for record in await self._store.list_runs():
            run_id = record.spec.run_id
            run = self._scheduler.runs.get(run_id)
            if run is None:
                if not record.state.ended and run_id not in self._ended:
                    await self.submit(record.spec, paused=record.state is RunState.PAUSED)
            elif record.state.ended:
                self.cancel(run_id)
            elif run.paused != (record.state is RunState.PAUSED):
                self.tell([RunPaused(run_id) if record.state is RunState.PAUSED else RunResumed(run_id)])

    async def _finish(self, run_id: str) -> None:
        await self._until_stored(lambda: self._store.set_run_state(run_id, RunState.FINISHED))

    async def _publish_failure(self, order: EpisodeOrder, failure: Failure) -> None:
        rollout = compose(order, Findings(), failure, node="")
        await self._until_stored(lambda: self._store.publish(rollout))
        self.tell([EpisodeEnded("", report(rollout, order, published=True))])

    async def _until_stored(self, write: Callable[[], Awaitable[object]]) -> None:
        wait_s = 0.1
        while True:
            try:
                await write()
                return
            except StoreUnavailable as error:
                _log.warning("%s; trying again in %.1f s", error, wait_s)
            except StoreError as error:
                _log.error("the store refuses: %s", error)
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tell([Tick()])

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("the scheduler met a defect of the farm", exc_info=error)

    # Answers

    def status(self) -> FarmStatus:
        now = time.monotonic()
        nodes = tuple(self._node_status(node, now) for node in self._scheduler.fleet)
        runs = tuple(
            RunStatus(
                run_id,
                running=len(run.running),
                waiting=run.total - len(run.accepted) - len(run.running),
                retries=run.retries,
                why_waiting=self._scheduler.why_waiting(run_id, now),
            )
            for run_id, run in self._scheduler.runs.items()
        )
        return FarmStatus(tuple(sorted(nodes, key=lambda node: node.node_id)), runs)

    def _node_status(self, node: Node, now: float) -> NodeStatus:
        state, why = node.condition(now, self._scheduler.settings)
        return NodeStatus(
            node_id=node.id,
            state=state,
            why=why,
            slots=node.slots,
            running=len(node.held),
            seen_s=now - node.beat_at,
            cpu_load=node.load.cpu,
            memory_load=node.load.memory,
            disk_load=node.load.disk,
        )

    async def metrics(self) -> bytes:
        queue: Counter[str] = Counter()
        try:
            for record in await self._store.list_runs():
                queue.update(record.counts)
        except StoreUnavailable as error:
            _log.warning("metrics without the queue's: %s", error)
        self._metrics.snapshot = Snapshot(self.status(), queue)
        return self._metrics.expose()

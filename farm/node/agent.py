"""The node agent: runs the episodes ordered of one machine, publishes their rollouts, reports to the scheduler."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from farm.core.rollout import Rollout
from farm.core.run import EpisodeAssignment
from farm.episode import (
    Baselines,
    EpisodeJournal,
    JournalDirectory,
    JournalError,
    Policy,
    cancelled_rollout,
    episode_report,
    failed_rollout,
    run_episode,
)
from farm.logs import name_episode
from farm.node.host_stats import cores, read_machine
from farm.node.image_cache import ImageCache
from farm.node.prewarm import SandboxPrewarmer
from farm.node.publisher import AgentStore, RolloutPublisher
from farm.node.task_cache import TaskCache
from farm.policy import EndpointPool, make_policy
from farm.rewards import Plugins
from farm.scheduler.messages import (
    DrainNode,
    EpisodeEnded,
    Event,
    Heartbeat,
    NodeLeft,
    PrewarmSandboxes,
    StartEpisode,
    StopEpisode,
)
from sandboxes import ImageError, Runtime, Sandbox, WarmPool
from sandboxes.cancellation import cancel_all, shielded
from sandboxes.search.index_store import IndexStore

EventSink = Callable[[Sequence[Event]], Awaitable[None]]
"""Tell the scheduler; returns when it has taken all of it. Raises anything where it has not."""

VERIFIERS_PER_CORE = 2
"""Test commands at once: bound by the processor, more of them are only slower, and run into their time-outs."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of a node agent.

    ``shutdown_timeout_s`` bounds each of the last calls of an agent that closes. ``tracebacks``: see ``grade``.
    ``join``: see ``Heartbeat``.
    """

    heartbeat_s: float = 1.0
    tell_timeout_s: float = 10.0
    reap_every_s: float = 60.0
    longest_backoff_s: float = 5.0
    shutdown_timeout_s: float = 5.0
    tracebacks: bool = False
    join: str = ""


@dataclass(slots=True)
class _EpisodeRun:
    """``begun``: the task has made its first step. ``stopped``: on purpose. ``finished``: the episode has its rollout,
    which a stop must not lose."""

    order: EpisodeAssignment
    journal: EpisodeJournal
    task: asyncio.Task[None] | None = None
    policy: Policy | None = None
    begun: bool = False
    stopped: bool = False
    finished: bool = False


@dataclass(slots=True)
class _PhaseTimes:
    """Seconds that an episode spent outside of its rollout."""

    ordered_at: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    def until_now(self, name: str, since: float) -> None:
        self.seconds[name] = time.monotonic() - since


class NodeAgent:
    """One per machine; lives from ``async with`` to its end. Knows nothing of Ray.

    No more than ``slots`` episodes run at once. An order is taken once, whatever comes twice; a newer attempt of a
    rollout replaces an older one. An episode is listed in the beats until the scheduler has taken its report, and
    reports and beats leave in order, one message at a time. A finished rollout is published however long the store
    stays away, and keeps its slot meanwhile. ``pool`` is the ``runtime`` itself, where that keeps sandboxes ready.

    What an agent of the same state directory ran when it was killed goes on where it was, and is listed from the first
    beat on: so the scheduler leaves it here, or has it stopped where it was given up.
    """

    def __init__(
        self,
        node_id: str,
        *,
        store: AgentStore,
        runtime: Runtime,
        shelf: ImageCache,
        slots: int,
        tell: EventSink,
        state_dir: Path,
        pool: WarmPool | None = None,
        image_disk: Path | None = None,
        library: IndexStore | None = None,
        plugins: Plugins | None = None,
        endpoints: EndpointPool | None = None,
        settings: AgentSettings | None = None,
    ) -> None:
        self.node_id = node_id
        self.slots = slots
        self._runtime = runtime
        self._shelf = shelf
        self._tell = tell
        self._state_dir = state_dir
        self._image_disk = image_disk
        self._library = library
        self._plugins = plugins
        self._settings = settings or AgentSettings()
        self._delivery = RolloutPublisher(store, node_id, self._settings.longest_backoff_s)
        self._bundles = TaskCache(store, state_dir / "bundles")
        self._readiness = SandboxPrewarmer(pool, self._bundles, shelf)
        self._endpoints = endpoints or EndpointPool()
        self._baselines = Baselines()
        self._journals = JournalDirectory(state_dir / "episodes")
        self._verifier_turns = asyncio.Semaphore(VERIFIERS_PER_CORE * cores())
        self._incarnation = secrets.token_hex(8)
        self._free = asyncio.Semaphore(slots)
        self._recalling = asyncio.Lock()
        self._works: dict[str, _EpisodeRun] = {}
        self._outbox: list[EpisodeEnded] = []
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._closing = False
        self._told_images: frozenset[str] | None = None
        self._loops: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._state_dir.mkdir(parents=True, exist_ok=True)
        await self._resume_episodes(await self._runtime.adopt())
        await self._reap()
        loops = (self._heartbeat_loop(), self._reap_on(), self._shelf.run_eviction_loop())
        self._loops = [asyncio.create_task(loop) for loop in loops]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await shielded(self._close())

    def execute(self, commands: Sequence[StartEpisode | StopEpisode | PrewarmSandboxes | DrainNode]) -> None:
        for command in commands:
            match command:
                case StartEpisode(_, order):
                    self._start(order)
                case StopEpisode(_, rollout_id, attempt):
                    work = self._works.get(rollout_id)
                    if work and work.order.attempt == attempt:
                        self._cancel(work)
                case DrainNode(_, drain):
                    self._draining = drain or self._closing
                    self._news.set()
                case PrewarmSandboxes(_, sandboxes) if not self._closing:
                    self._readiness.prewarm(sandboxes)

    async def drain(self) -> None:
        """Take no more work; return when the last episode has ended and been reported."""
        self._draining = True
        self._news.set()
        await self._idle.wait()

    # Episodes

    def _start(self, order: EpisodeAssignment, journal: EpisodeJournal | None = None) -> None:
        """``journal``: of one that has begun already."""
        older = self._works.get(order.rollout_id)
        if self._closing or (older and older.order.attempt >= order.attempt):
            return
        if older:
            self._cancel(older)
        work = self._works[order.rollout_id] = _EpisodeRun(order, journal or self._journals.of(order))
        work.task = asyncio.create_task(self._run_and_report(work, older.task if older else None))
        self._idle.clear()

    def _cancel(self, work: _EpisodeRun) -> None:
        if work.task and not work.finished:
            work.stopped = True
            if work.begun:  # or its report would never be made
                work.task.cancel()

    async def _run_and_report(self, work: _EpisodeRun, older: asyncio.Task[None] | None) -> None:
        """From the order to the report, which is always made: also of a stopped episode."""
        order, spent = work.order, _PhaseTimes()
        name_episode(order.run_id, order.rollout_id)
        rollout, published = cancelled_rollout(order, node=self.node_id), False
        work.begun = True
        try:
            if work.stopped:
                raise asyncio.CancelledError
            with self._shelf.pin(order.task.image):
                try:
                    if older:
                        await asyncio.wait({older})
                    async with self._free:
                        rollout = await self._episode(work, spent)
                        work.finished = True
                        rollout = replace(rollout, metrics={**rollout.metrics, **spent.seconds})
                        rollout, published = await self._delivery.publish(order, rollout)
                finally:
                    await shielded(self._discard(work.journal))
        except asyncio.CancelledError:
            _log.info("attempt %d was stopped", order.attempt)
            if not (work.stopped or self._closing):  # reported as a stop it would be tried again for ever
                rollout = failed_rollout(order, OSError("the episode was cancelled by nobody"), node=self.node_id)
        finally:
            ended = episode_report(rollout, order, published)
            if ended.failure:
                _log.warning("attempt %d failed, %s: %s", order.attempt, ended.failure.type, ended.failure.message)
            turnaround = {"turnaround_s": time.monotonic() - spent.ordered_at}
            self._outbox.append(EpisodeEnded(self.node_id, replace(ended, metrics={**ended.metrics, **turnaround})))
            if self._works.get(order.rollout_id) is work:
                del self._works[order.rollout_id]
            self._news.set()

    async def _discard(self, journal: EpisodeJournal) -> None:
        journal.remove()
        if journal.sandbox:  # its episode has removed it, unless it did not come to that
            await self._remove([journal.sandbox])

    async def _recall(self, work: _EpisodeRun) -> None:
        """What is left of its episode; where that cannot be read it begins anew. One at a time: they may be long."""
        try:
            async with self._recalling:
                await shielded(asyncio.to_thread(work.journal.recall))
        except (JournalError, OSError) as error:
            _log.warning("the episode begins anew: %s", error)
            await self._discard(work.journal)
            work.journal = self._journals.of(work.order)

    async def _episode(self, work: _EpisodeRun, spent: _PhaseTimes) -> Rollout:
        order = work.order
        try:
            began = time.monotonic()
            spent.until_now("queue_s", spent.ordered_at)
            bundle = await self._delivery.retry_until_available(lambda: self._bundles.get(order.task))
            await self._shelf.ensure(bundle)
            policy = work.policy = make_policy(order.policy, bundle, seed=order.seed, endpoints=self._endpoints)
            spent.until_now("prepare_s", began)
            try:
                await self._recall(work)
                with self._readiness.prewarm_grader(bundle) as on_event:
                    rollout = await run_episode(
                        order,
                        bundle,
                        self._runtime,
                        policy,
                        node=self.node_id,
                        baselines=self._baselines,
                        verifier_turns=self._verifier_turns,
                        on_event=on_event,
                        library=self._library,
                        journal=work.journal,
                        plugins=self._plugins,
                        tracebacks=self._settings.tracebacks,
                    )
            finally:
                await policy.close()
        except Exception as error:  # whatever keeps an episode from beginning becomes its failure
            return failed_rollout(order, error, node=self.node_id)
        if rollout.error and rollout.error.type == ImageError.__name__:
            self._shelf.invalidate(bundle)
        return rollout

    # The scheduler

    async def _heartbeat_loop(self) -> None:
        """Beats and reports, one message at a time: at once when there is news, else every ``beat_s``."""
        while True:
            self._news.clear()
            if not await self._send_heartbeat(self._settings.tell_timeout_s):
                await asyncio.sleep(self._settings.heartbeat_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.heartbeat_s):  # wait_for may swallow that we are cancelled
                    await self._news.wait()

    async def _send_heartbeat(self, timeout_s: float) -> bool:
        reports = list(self._outbox)
        images = self._shelf.images
        beat = self._beat(images if images != self._told_images else None)
        try:
            async with asyncio.timeout(timeout_s):
                await self._tell([*reports, beat])
        except Exception as error:  # whatever the way to the scheduler raises means that it has not heard
            _log.warning("the scheduler does not answer (%s); %d reports wait", error, len(reports))
            self._told_images = None
            return False
        del self._outbox[: len(reports)]
        self._told_images = images
        if not self._works and not self._outbox:
            self._idle.set()
        return True

    def _beat(self, images: frozenset[str] | None) -> Heartbeat:
        reading = read_machine(self._state_dir, self._image_disk)
        return Heartbeat(
            node_id=self.node_id,
            incarnation=self._incarnation,
            slots=self.slots,
            cpus=float(cores()),
            memory_mib=reading.memory_mib,
            memory_available_mib=reading.memory_available_mib,
            load=reading.load,
            pressure=reading.pressure,
            disk_free_mib=reading.disk_free_mib,
            image_disk_free_mib=reading.image_disk_free_mib,
            degraded=self._runtime.degraded,
            running={rollout_id: work.order.attempt for rollout_id, work in self._works.items()},
            images=images,
            draining=self._draining,
            join=self._settings.join,
            outages={
                work.order.run_id: work.policy.unavailable_reason
                for work in self._works.values()
                if work.policy and work.policy.unavailable_reason
            },
        )

    # Ends

    async def _resume_episodes(self, sandboxes: Sequence[Sandbox]) -> None:
        """What a process of this agent that was killed has left: episodes go on where their journals end.

        What has no journal, or no sandbox and needs one, goes; the scheduler orders such an episode anew.
        """
        living = {sandbox.id: sandbox for sandbox in sandboxes}
        journals = await asyncio.to_thread(self._journals.find_interrupted)
        for journal, left in sorted(journals, key=lambda found: found[1].order.attempt):
            named = {"run": left.order.run_id, "rollout": left.order.rollout_id}
            if not left.settled:
                journal.sandbox = living.pop(left.sandbox_id, None)
                if journal.sandbox is None:
                    _log.warning("the episode begins anew: its sandbox is gone", extra=named)
                    journal.remove()
                    continue
            _log.info("attempt %d goes on at turn %d", left.order.attempt, left.turn, extra=named)
            self._start(left.order, journal)
        for sandbox in living.values():
            _log.info("sandbox %s goes, which no episode needs any more: %s", sandbox.id, sandbox.spec.labels)
        await self._remove(living.values())

    async def _remove(self, sandboxes: Iterable[Sandbox]) -> None:
        for result in await asyncio.gather(*(sandbox.remove() for sandbox in sandboxes), return_exceptions=True):
            if isinstance(result, Exception):
                _log.warning("a sandbox that was left stays for the reaper: %s", result)

    async def _reap_on(self) -> None:
        while True:
            await asyncio.sleep(self._settings.reap_every_s)
            await self._reap()

    async def _reap(self) -> None:
        try:
            removed = await self._runtime.reap()
        except Exception:  # what cannot be removed now is tried again by the next round
            _log.warning("the reaper failed", exc_info=True)
            return
        if removed:
            _log.info("the reaper removed %d sandboxes of dead owners", removed)

    async def _close(self) -> None:
        """Stop what runs, its sandboxes removed; publish what has finished; say good-bye."""
        self._draining = self._closing = True
        await cancel_all(self._loops)
        await self._readiness.close()
        tasks = {work.task for work in self._works.values() if work.task}
        for work in list(self._works.values()):
            self._cancel(work)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._settings.shutdown_timeout_s)
            for task in late:  # the store is away: the scheduler will order the episode again elsewhere
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        try:
            async with asyncio.timeout(self._settings.shutdown_timeout_s):
                await self._tell([*self._outbox, NodeLeft(self.node_id)])
        except Exception as error:  # the scheduler may be gone before us; it will miss our beats otherwise
            _log.info("the scheduler did not hear our good-bye: %s", error)
        await self._shelf.close()
        await self._endpoints.close()

"""The scheduler as a state machine: events in, commands out. No I/O, no clock of its own."""

import heapq
from collections.abc import Iterable, Mapping

from farm.core.rollout import Failure, Origin
from farm.core.run import EpisodeReport, parse_rollout_id
from farm.scheduler.demand_forecast import forecast_demand
from farm.scheduler.messages import (
    Command,
    DrainNode,
    EpisodeEnded,
    Event,
    Heartbeat,
    NodeDrained,
    NodeLeft,
    NodeLost,
    PrewarmSandboxes,
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
from farm.scheduler.nodes import Node, NodeRegistry, RunningEpisode, SchedulerSettings
from farm.scheduler.run_progress import Retry, RunProgress


class Scheduler:
    """Decides which episode runs where.

    Invariants, checked by ``validate``:

    1. A place of a run is in one state only: accepted, running, publishing, waiting, delayed, or not begun.
    2. A place runs on one node at most, and that node holds the episode. An older attempt that turns up is stopped.
    3. A place is accepted once. In one life of the scheduler no two attempts of it have the same number.
    4. No episode is ordered on a node without a free slot, nor for a run that is paused, cancelled or at its cap.
    5. A slot is free again only when its node has reported or stopped listing the episode, or is lost.
       What a node goes on with when its agent was killed and has come back keeps its slot and its attempt.
    6. A run leaves when each of its places is accepted (RunFinished) or when it is cancelled, and starts
       nothing after that.

    Between runs the one with the fewest running episodes goes first. ``hold_until`` gives the nodes time to say what
    they run before a restarted scheduler orders anything.
    """

    def __init__(self, settings: SchedulerSettings | None = None, *, hold_until: float = 0.0) -> None:
        self.settings = settings or SchedulerSettings()
        self.fleet = NodeRegistry(self.settings)
        self._runs: dict[str, RunProgress] = {}
        self._ready: list[tuple[int, int, str]] = []
        self._stamps: dict[str, int] = {}
        self._stamp = 0
        self._delays: list[tuple[float, str, int]] = []
        self._hold_until = hold_until

    @property
    def runs(self) -> Mapping[str, RunProgress]:
        return self._runs

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in what has happened by ``now`` (seconds, never backwards); what is to be done about it, in order."""
        commands: list[Command] = []
        match event:
            case RunSubmitted():
                commands += self._submit(event)
            case RunPaused(run_id) | RunResumed(run_id):
                if run := self._runs.get(run_id):
                    run.paused = isinstance(event, RunPaused)
                    self._offer(run)
            case RunCancelled(run_id):
                commands += self._cancel(run_id)
            case Heartbeat():
                commands += self._beat(event, now)
            case NodeLost(node_id):
                commands += self._lose(node_id, "its node agent has died", now)
            case NodeLeft(node_id):
                commands += self._leave(node_id, now)
            case NodeDrained(node_id, drain):
                commands += self._drain(node_id, drain, now)
            case EpisodeEnded(node_id, report):
                commands += self._ended(node_id, report, now)
            case Tick():
                silent = f"no heartbeat for {self.settings.lost_after_s:g} s"
                for node_id in self.fleet.expired(now):
                    commands += self._lose(node_id, silent, now)
        self._wake(now)
        commands += self._place(now)
        if isinstance(event, Heartbeat):
            commands += self._prewarm(event.node_id, now)
        return commands

    # Runs

    def _submit(self, event: RunSubmitted) -> Iterable[Command]:
        run_id = event.spec.run_id
        if run_id in self._runs:
            return
        run = RunProgress(event.spec, event.accepted, paused=event.paused)
        if run.complete:
            yield RunFinished(run_id)
            return
        self._runs[run_id] = run
        self._offer(run)

    def _cancel(self, run_id: str) -> Iterable[Command]:
        run = self._runs.pop(run_id, None)
        self._stamps.pop(run_id, None)
        for episode in list(run.running.values()) if run else ():
            yield self._stop(episode)

    def _stop(self, episode: RunningEpisode) -> StopEpisode:
        episode.member, episode.stopping = None, True
        return StopEpisode(episode.node_id, episode.rollout_id, episode.attempt)

    def _offer(self, run: RunProgress) -> None:
        """Queue a run for placement at its present share; an older entry of it goes stale."""
        if run.startable:
            self._stamp += 1
            self._stamps[run.spec.run_id] = self._stamp
            heapq.heappush(self._ready, (len(run.running), self._stamp, run.spec.run_id))

    # Nodes

    def _beat(self, beat: Heartbeat, now: float) -> Iterable[Command]:
        known = self.fleet.get(beat.node_id)
        reborn = known is not None and known.incarnation != beat.incarnation
        drain = self.fleet.drained_before(beat)
        held = self.fleet.remove(beat.node_id) if reborn else []
        node = self.fleet.heartbeat(beat, now)
        if drain:
            yield from self._drain(node.id, True, now)
        elif node.drain is not None and beat.draining != node.drain:
            yield DrainNode(node.id, node.drain)
        else:
            node.drain = None
        for episode in held:
            if beat.running.get(episode.rollout_id) == episode.attempt:
                episode.confirmed = episode.adopted = True
                self.fleet.hold(episode, now)
            else:
                yield from self._lost(episode, now)
        for rollout, attempt in beat.running.items():
            yield from self._listed(node, rollout, attempt, now)
        for key, episode in list(node.held.items()):
            if beat.running.get(key[0]) == key[1]:
                self.fleet.confirm_episode(episode)
            elif episode.confirmed or now - episode.ordered_at >= self.settings.order_grace_s:
                self.fleet.release(node.id, key, now)
                yield from self._lost(episode, now)
        self.fleet.refresh(node, now)

    def _drain(self, node_id: str, drain: bool, now: float) -> Iterable[Command]:
        node = self.fleet.get(node_id)
        if node is not None:
            self.fleet.drain(node, drain, now)
            yield DrainNode(node_id, drain)

    def _listed(self, node: Node, rollout: str, attempt: int, now: float) -> Iterable[Command]:
        """A node says that it runs an attempt: it was ordered, or is taken over, or must stop."""
        held = node.held.get((rollout, attempt))
        if held is not None:
            if held.stopping:
                yield self._stop(held)
            return
        parsed = parse_rollout_id(rollout)
        run = self._runs.get(parsed[0]) if parsed else None
        place = run.member(rollout) if run else None
        memory_mib = run.task(place).memory_mib if run and place is not None else 0
        episode = RunningEpisode(
            rollout, attempt, parsed[0] if parsed else "", place, node.id, memory_mib, now, confirmed=True, adopted=True
        )
        self.fleet.hold(episode, now)
        if run and place is not None and run.is_open(place) and attempt >= run.attempts.get(place, 0):
            run.adopt(place, episode)
        else:
            yield self._stop(episode)

    def _lose(self, node_id: str, cause: str, now: float) -> Iterable[Command]:
        if node_id in self.fleet:
            for episode in self.fleet.lose(node_id, cause, now):
                yield from self._lost(episode, now)

    def _leave(self, node_id: str, now: float) -> Iterable[Command]:
        for episode in self.fleet.remove(node_id):
            yield from self._lost(episode, now, planned=True)

    def _lost(self, episode: RunningEpisode, now: float, *, planned: bool = False) -> Iterable[Command]:
        """An attempt is gone without a word of its own."""
        run = self._runs.get(episode.run_id)
        if run is None or episode.member is None:
            return
        message = f"the node {episode.node_id} was lost while it ran the episode"
        failure = None if planned else Failure(Origin.INFRA, "NodeLost", message, retryable=True)
        yield from self._retry(run, episode, failure, now, delay_s=0.0)

    # Episodes

    def _ended(self, node_id: str, report: EpisodeReport, now: float) -> Iterable[Command]:
        self.fleet.release(node_id, (report.rollout_id, report.attempt), now)
        infra = report.failure is not None and report.failure.origin is Origin.INFRA
        self.fleet.record_outcome(node_id, infra_failure=infra, now=now)
        run = self._runs.get(report.run_id)
        place = run.member(report.rollout_id) if run else None
        if run is None or place is None:
            return
        current = run.running.get(place)
        if report.published:
            yield from self._accept(run, place, (node_id, report.attempt))
        elif current and (current.node_id, current.attempt) == (node_id, report.attempt):
            delay_s = self.settings.retry_delay_s if report.failure else 0.0
            yield from self._retry(run, current, report.failure, now, delay_s=delay_s)

    def _accept(self, run: RunProgress, place: int, ended: tuple[str, int]) -> Iterable[Command]:
        """A rollout of the place is in the store, whichever attempt it was; another that runs has become needless."""
        current = run.running.pop(place, None)
        if current and (current.node_id, current.attempt) != ended:
            yield self._stop(current)
        run.accept(place)
        if run.complete:
            del self._runs[run.spec.run_id]
            self._stamps.pop(run.spec.run_id, None)
            yield RunFinished(run.spec.run_id)
        else:
            self._offer(run)

    def _retry(
        self, run: RunProgress, episode: RunningEpisode, failure: Failure | None, now: float, *, delay_s: float
    ) -> Iterable[Command]:
        """Once more after ``delay_s``, doubled by each earlier failure; ``failure`` None: it was stopped on purpose."""
        place = episode.member
        assert place is not None
        del run.running[place]
        failures = run.fail(place, episode.attempt) if failure else 0
        if failure and (failures >= run.spec.max_attempts or not failure.retryable):
            run.publishing.add(place)
            yield PublishFailure(run.assignment(place, episode.attempt), failure)
        else:
            delay_s *= 2 ** max(0, failures - 1)
            run.retries += 1
            patient_until = now + delay_s + self.settings.retry_patience_s
            run.delayed[place] = Retry(episode.node_id, now + delay_s, patient_until)
            heapq.heappush(self._delays, (now + delay_s, run.spec.run_id, place))
        self._offer(run)

    def _wake(self, now: float) -> None:
        """Retries whose time has come may start."""
        while self._delays and self._delays[0][0] <= now:
            due_at, run_id, place = heapq.heappop(self._delays)
            run = self._runs.get(run_id)
            if run and place in run.delayed and run.delayed[place].due_at == due_at:
                run.defer(place, run.delayed.pop(place))
                self._offer(run)

    # Placement

    def _place(self, now: float) -> Iterable[Command]:
        if now < self._hold_until:
            return
        blocked: list[RunProgress] = []
        while self._ready and self.fleet.has_open(now):
            _, stamp, run_id = heapq.heappop(self._ready)
            run = self._runs.get(run_id)
            if run is None or self._stamps.get(run_id) != stamp or not run.startable:
                continue
            command = self._start(run, now)
            if command is None:
                blocked.append(run)
            else:
                self._offer(run)
                yield command
        for run in blocked:
            self._offer(run)

    def _start(self, run: RunProgress, now: float) -> StartEpisode | None:
        for place, waiting in run.candidates():
            task = run.task(place)
            node = self.fleet.pick(task, waiting.exclude_node if now < waiting.exclude_until else None, now)
            if node is None:
                run.defer(place, waiting)
                continue
            attempt = run.start_attempt(place)
            order = run.assignment(place, attempt)
            episode = RunningEpisode(order.rollout_id, attempt, order.run_id, place, node.id, task.memory_mib, now)
            run.running[place] = episode
            self.fleet.hold(episode, now)
            return StartEpisode(node.id, order)
        return None

    def _prewarm(self, node_id: str, now: float) -> Iterable[Command]:
        """Tell a node that is well what it will need next, when that has changed."""
        node = self.fleet.get(node_id)
        if node is None or not self.settings.warm:
            return
        well = node.availability(now, self.settings)[0] in ("open", "full")
        expects = forecast_demand(node, self._runs.values(), self.settings.warm, nodes=len(self.fleet)) if well else ()
        if expects != node.expects:
            node.expects = expects
            yield PrewarmSandboxes(node_id, expects)

    # Answers

    def held_s(self, event: EpisodeEnded, now: float) -> float | None:
        """Seconds since the episode that has ended was ordered; None where it was not ordered here."""
        node = self.fleet.get(event.node_id)
        episode = node.held.get((event.report.rollout_id, event.report.attempt)) if node else None
        return now - episode.ordered_at if episode and not episode.adopted else None

    def why_waiting(self, run_id: str, now: float) -> str:
        """Why nothing more of a run starts just now, for people; empty where nothing of it waits."""
        run = self._runs.get(run_id)
        if run is None or not (run.has_work or run.delayed):
            return ""
        if run.paused:
            return "the run is paused"
        if run.capped:
            return f"the run is at its cap of {run.spec.concurrency} episodes at once"
        if now < self._hold_until:
            return "the scheduler has restarted and waits for the nodes to say what they run"
        if not run.has_work:
            soonest = min(waiting.due_at for waiting in run.delayed.values())
            return f"the next of {len(run.delayed)} retries is due in {max(0.0, soonest - now):.0f} s"
        if not len(self.fleet):
            return "no node has joined"
        return self._why_unplaced(run, now)

    def _why_unplaced(self, run: RunProgress, now: float) -> str:
        place, waiting = next(run.candidates())
        task = run.task(place)
        conditions = {node.id: node.availability(now, self.settings) for node in self.fleet}
        opened = [node for node in self.fleet if conditions[node.id][0] == "open"]
        if not opened:
            if all(state == "full" for state, _ in conditions.values()):
                return self._slots_taken(run)
            reasons = [f"{node_id}: {why}" for node_id, (state, why) in conditions.items() if state != "full"]
            return "; ".join(reasons[:3])
        overcommit = self.settings.overcommit
        roomiest = max(opened, key=lambda node: node.room_mib(overcommit))
        if task.memory_mib > roomiest.room_mib(overcommit):
            most = f"the most that an open node has room for is {roomiest.room_mib(overcommit)} MiB, on {roomiest.id}"
            return f"{task.id} needs {task.memory_mib} MiB of memory; {most}"
        if all(task.cpus > node.cpus for node in opened):
            return f"{task.id} needs {task.cpus:g} cores; no open node has so many"
        if waiting.exclude_node and now < waiting.exclude_until:
            return f"a retry waits for a node other than {waiting.exclude_node}"
        return "it is about to start"

    def _slots_taken(self, run: RunProgress) -> str:
        slots, nodes = sum(node.slots for node in self.fleet), len(self.fleet)
        own = len(run.running)
        by = "" if not own else " by this run" if own >= slots else f", {own} of them by this run"
        return f"all {slots} slots of {nodes} {'node' if nodes == 1 else 'nodes'} are taken{by}"

    def outage(self, run_id: str) -> str:
        """Why episodes of a run wait for their policy's endpoint, as some node tells it; empty where none does."""
        return next((node.outages[run_id] for node in self.fleet if run_id in node.outages), "")

    def validate(self, now: float) -> None:
        """Raise AssertionError where an invariant is broken. Reads everything: for tests."""
        self.fleet.validate(now)
        for run_id, run in self._runs.items():
            assert not run.complete, f"{run_id} is complete and still here"
            run.validate()
            for episode in run.running.values():
                node = self.fleet.get(episode.node_id)
                assert node is not None, f"{episode} runs on no node"
                assert node.held.get(episode.key) is episode, f"{episode} is not held by its node"
            if run.startable:
                queued = {(stamp, name) for _, stamp, name in self._ready}
                assert (self._stamps.get(run_id), run_id) in queued, f"{run_id} has work and is not queued"
        for node in self.fleet:
            for episode in node.held.values():
                run_of = self._runs.get(episode.run_id)
                current = run_of.running.get(episode.member) if run_of and episode.member is not None else None
                assert episode.stopping or current is episode or run_of is None, f"{episode} belongs to nothing"

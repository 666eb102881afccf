"""Whatever happens, in whatever order, the scheduler keeps its promises."""

import random
from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from farm.core.rollout import Split
from farm.core.run import RETURNED, EpisodeAssignment, RunSpec, TaskRef
from farm.core.run_options.branching import Branching
from farm.core.run_options.groups import GroupOptions, Incomplete, SamplerKind
from farm.scheduler.messages import (
    Command,
    DrainNode,
    EpisodeEnded,
    Event,
    GroupFeedback,
    LearnerProgress,
    LearnerProgressed,
    NodeDrained,
    NodeLeft,
    NodeLost,
    PrewarmSandboxes,
    PublishFailure,
    RecordSurplus,
    RunCancelled,
    RunFinished,
    RunPaused,
    RunResumed,
    RunSubmitted,
    SandboxPlaced,
    SandboxReleased,
    SandboxRequested,
    StartEpisode,
    StopEpisode,
    Tick,
)
from farm.scheduler.nodes import RunningEpisode
from farm.scheduler.settings import SchedulerSettings
from farm.scheduler.state_machine import Scheduler
from tests.support.farm.scheduler_values import beat, failed, run_spec, solved, stopped, task, tree_ended

SETTINGS = SchedulerSettings(warm=2)
NODES = ("a", "b", "c")
TASKS = (task("t"), task("u", memory_mib=300), task("v"))
OPTIONS = st.builds(
    GroupOptions,
    max_staleness=st.none() | st.integers(0, 2),
    batch_groups=st.integers(1, 2),
    queue_groups=st.none() | st.integers(1, 3),
    incomplete=st.sampled_from(Incomplete),
    redundant=st.integers(0, 2),
    sampler=st.sampled_from([SamplerKind.IN_ORDER, SamplerKind.UNIFORM]),
)


class PretendedNode:
    """The real state of a node: assignments arrive late or never, episodes end, reports are sent again."""

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.slots = slots
        self.incarnation = 1
        self.draining = False
        self.mail: list[Command] = []
        self.running: dict[str, EpisodeAssignment] = {}
        self.sandboxes: dict[str, int] = {}

    def read_mail(self) -> None:
        for command in self.mail:
            if isinstance(command, StartEpisode):
                self.running[command.assignment.rollout_id] = command.assignment
            elif isinstance(command, DrainNode):
                self.draining = command.drain
        self.mail.clear()


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(slots=st.lists(st.integers(1, 3), min_size=3, max_size=3))
    def begin(self, slots: list[int]) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(SETTINGS)
        self.nodes = {name: PretendedNode(name, count) for name, count in zip(NODES, slots, strict=True)}
        self.specs: dict[str, RunSpec] = {}
        self.paused: set[str] = set()
        self.cancelled: set[str] = set()
        self.finished: set[str] = set()
        self.store: dict[str, set[str]] = {}
        self.failures: list[PublishFailure] = []
        self.spared: set[tuple[str, int]] = set()
        self.requested: dict[str, int] = {}
        self.placed: dict[str, str] = {}
        self.learners: dict[str, LearnerProgress] = {}
        self.stale: dict[str, list[int]] = {}
        self.most_held: dict[str, int] = {}

    def tell(self, event: Event) -> list[Command]:
        room = self._room()
        commands = self.scheduler.handle(event, self.now)
        self.scheduler.validate(self.now)
        for command in commands:
            match command:
                case StartEpisode(node_id, order):
                    self._check_start(order)
                    self.nodes[node_id].mail.append(command)
                case StopEpisode(node_id):
                    if node_id in self.nodes:
                        self.nodes[node_id].mail.append(command)
                case PrewarmSandboxes(node_id, sandboxes):
                    node = self.scheduler.fleet.get(node_id)
                    assert node is not None
                    assert sum(count for _, count in sandboxes) <= min(SETTINGS.warm, len(node.held))
                    assert {task.image for task, _ in sandboxes} <= node.images
                case DrainNode(node_id):
                    self.nodes[node_id].mail.append(command)
                case PublishFailure():
                    self.failures.append(command)
                case RecordSurplus(order):
                    assert order.rollout_id not in self.store[order.run_id]
                    assert self._members(order.run_id, order.group_id) == order.group_size
                case RunFinished(run_id):
                    self._check_finish(run_id)
                    self.finished.add(run_id)
                case SandboxPlaced(sandbox_id, node_id):
                    assert sandbox_id in self.requested
                    self.placed[sandbox_id] = node_id
        self._check_slots(commands, room, event)
        return commands

    def _members(self, run_id: str, group: str) -> int:
        return sum(rollout.startswith(f"{group}-") for rollout in self.store[run_id])

    def _groups(self, run_id: str) -> set[str]:
        return {rollout.rpartition("-")[0] for rollout in self.store[run_id]}

    def _check_finish(self, run_id: str) -> None:
        spec, learner = self.specs[run_id], self.learners[run_id]
        assert run_id not in self.finished | self.cancelled
        groups = self._groups(run_id)
        assert len(groups) == spec.groups + len(self.stale[run_id])
        assert all(self._members(run_id, group) == spec.group_size for group in groups)
        if spec.options.max_staleness is not None:
            assert learner.acked + learner.dropped == len(groups), "a group may still be dropped and replaced"

    def _check_pace(self, order: EpisodeAssignment) -> None:
        """Check that a group that begins is within the bounds, by what the store and the nodes hold."""
        spec, learner = self.specs[order.run_id], self.learners[order.run_id]
        options, open_groups = spec.options, len(self.scheduler.runs[order.run_id].opened)
        assert self._members(order.run_id, order.group_id) < spec.group_size, "the group is complete"
        held = open_groups - learner.acked - learner.dropped
        if options.queue_groups is not None:
            assert held <= max(options.queue_groups, self.most_held[order.run_id])
        if options.max_staleness is not None:
            budget = (options.max_staleness + (learner.policy_version or 0) + 1) * options.batch_groups
            before = self.most_held[order.run_id]  # groups that were open before are not held back
            assert open_groups - learner.dropped <= max(budget, before)

    def _room(self) -> dict[str, int]:
        return {node.id: node.slots - node.taken for node in self.scheduler.fleet}

    def _check_slots(self, commands: list[Command], room: dict[str, int], event: Event) -> None:
        started = Counter(c.node_id for c in commands if isinstance(c, StartEpisode | SandboxPlaced))
        for node in self.scheduler.fleet:
            if started[node.id]:
                assert node.taken <= node.slots, f"{node.id} holds {node.taken} of {node.slots} after {event}"

    def _check_start(self, order: EpisodeAssignment) -> None:
        run_id = order.run_id
        assert run_id not in self.cancelled | self.finished | self.paused
        places = {order.leaf(index).rollout_id for index in order.leaves or (order.group_index,)}
        assert not places & self.store[run_id], "an accepted place was ordered"
        spec = self.specs[run_id]
        self._check_pace(order)
        spared = sum(1 for rollout, attempt in self.spared if rollout == order.rollout_id and attempt < order.attempt)
        if spec.options.incomplete is Incomplete.REFILL:
            assert not (order.final and order.refill)
            return
        assert order.final == (order.attempt - spared >= spec.max_attempts), "each attempt has failed or was spared"

    def _running(self) -> list[RunningEpisode]:
        """Return the running episodes in the scheduler's state."""
        return [episode for run in self.scheduler.runs.values() for episode in run.running.values()]

    # What people do

    @rule(
        groups=st.integers(1, 4),
        size=st.integers(1, 3),
        cap=st.none() | st.integers(1, 3),
        attempts=st.integers(1, 3),
        options=OPTIONS,
        done=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=3),
        branching=st.sampled_from([None, Branching(2, (1,)), Branching(2, (1, 2))]),
        split=st.sampled_from(Split),
    )
    def submit(
        self,
        groups: int,
        size: int,
        cap: int | None,
        attempts: int,
        options: GroupOptions,
        done: set[tuple[int, int]],
        branching: Branching | None,
        split: Split,
    ) -> None:
        run_id = f"r{len(self.specs)}"
        if branching:
            size *= branching.leaves
            options = replace(options, redundant=0, incomplete=Incomplete.DELIVER)
        spec = run_spec(
            run_id,
            groups=groups,
            group_size=size,
            tasks=TASKS,
            concurrency=cap,
            max_attempts=attempts,
            options=replace(options, redundant=min(options.redundant, size)),
            branching=branching,
            split=split,
        )
        self.specs[run_id] = spec
        self.learners[run_id] = LearnerProgress(policy_version=0)
        self.stale[run_id] = []
        accepted: dict[str, set[int]] = {}
        for ordinal, index in done:
            if ordinal < groups and index < size:
                accepted.setdefault(f"{run_id}-g{ordinal:06d}", set()).add(index)
        self.store[run_id] = {f"{group}-{index:03d}" for group, indices in accepted.items() for index in indices}
        self.most_held[run_id] = len(accepted)
        self.tell(RunSubmitted(spec, accepted, learner=self.learners[run_id]))

    @precondition(lambda self: self.specs)
    @rule(data=st.data(), action=st.sampled_from(["pause", "resume", "cancel", "again"]))
    def steer(self, data: st.DataObject, action: str) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.specs)))
        if run_id in self.finished | self.cancelled:
            return
        if action == "pause":
            self.paused.add(run_id)
            self.tell(RunPaused(run_id))
        elif action == "resume":
            self.paused.discard(run_id)
            self.tell(RunResumed(run_id))
        elif action == "cancel":
            self.cancelled.add(run_id)
            self.tell(RunCancelled(run_id))
        else:
            self.tell(RunSubmitted(self.specs[run_id]))

    # What learners do

    @precondition(lambda self: self.specs)
    @rule(data=st.data(), how=st.sampled_from(["ack", "drop", "stale", "announce"]), silent=st.booleans())
    def learn(self, data: st.DataObject, how: str, silent: bool) -> None:
        """Settle a complete group, or announce a version. If ``silent``, the scheduler reads it later."""
        run_id = data.draw(st.sampled_from(sorted(self.specs)))
        if run_id in self.finished | self.cancelled:
            return
        spec, learner = self.specs[run_id], self.learners[run_id]
        whole = [group for group in self._groups(run_id) if self._members(run_id, group) == spec.group_size]
        stale: tuple[int, ...] = ()
        if how == "announce":
            learner = replace(learner, policy_version=(learner.policy_version or 0) + 1)
        elif len(whole) <= learner.acked + learner.dropped:
            return
        elif how == "ack":
            learner = replace(learner, acked=learner.acked + 1)
        else:
            learner = replace(learner, dropped=learner.dropped + 1)
            left = sorted({int(group.rpartition("-g")[2]) for group in whole} - set(self.stale[run_id]))
            ordinals = [ordinal for ordinal in left if ordinal < RETURNED]
            if how == "stale" and spec.options.max_staleness is not None and ordinals:
                stale = (ordinals[0],)
                self.stale[run_id] += stale
        self.learners[run_id] = learner
        if stale or not silent:
            self.tell(LearnerProgressed(run_id, learner, GroupFeedback(stale=stale)))

    @rule(task=st.sampled_from(TASKS), name=st.none() | st.sampled_from(NODES))
    def request_sandbox(self, task: TaskRef, name: str | None) -> None:
        sandbox_id = f"sb-{len(self.requested)}"
        self.requested[sandbox_id] = task.memory_mib
        self.tell(SandboxRequested(sandbox_id, task, name or ""))

    @precondition(lambda self: self.placed)
    @rule(data=st.data(), how=st.sampled_from(["start", "release", "end"]))
    def move_sandbox(self, data: st.DataObject, how: str) -> None:
        """Start a placed sandbox on its node, give up its slot, or end it on its node."""
        sandbox_id = data.draw(st.sampled_from(sorted(self.placed)))
        node = self.nodes[self.placed[sandbox_id]]
        if how == "start":
            node.sandboxes[sandbox_id] = self.requested[sandbox_id]
            return
        del self.placed[sandbox_id]
        node.sandboxes.pop(sandbox_id, None)
        if how == "release":
            self.tell(SandboxReleased(sandbox_id))

    # What nodes do

    @rule(name=st.sampled_from(NODES), images=st.none() | st.sets(st.sampled_from(["image-t", "image-u"])))
    def send_beat(self, name: str, images: set[str] | None) -> None:
        node = self.nodes[name]
        running = {rollout: order.attempt for rollout, order in node.running.items()}
        kept = [e for e in self._running() if e.node_id == name and running.get(e.rollout_id) == e.attempt]
        self.tell(
            beat(
                name,
                slots=node.slots,
                running=running,
                incarnation=str(node.incarnation),
                memory_mib=1000,
                images=frozenset(images) if images is not None else None,
                draining=node.draining,
                sandboxes=dict(node.sandboxes),
            )
        )
        held = self.scheduler.fleet.get(name)
        assert held is not None
        assert node.sandboxes.keys() <= held.sandboxes.keys(), "each sandbox that lives has its slot"
        after = {id(episode) for episode in self._running()}
        assert all(id(episode) in after for episode in kept), "what a node goes on with was taken from it"

    @rule(name=st.sampled_from(NODES), lose=st.booleans())
    def deliver(self, name: str, lose: bool) -> None:
        node = self.nodes[name]
        stops = [command for command in node.mail if isinstance(command, StopEpisode)]
        if lose:
            node.mail.clear()
            return
        node.read_mail()
        for stop in stops:
            order = node.running.get(stop.rollout_id)
            if order and order.attempt == stop.attempt:
                del node.running[stop.rollout_id]
                self.spared |= {
                    e.key for e in self._running() if (e.node_id, *e.key) == (name, stop.rollout_id, stop.attempt)
                }
                self.tell(stopped(name, order))

    @rule(data=st.data(), name=st.sampled_from(NODES), how=st.sampled_from(["solved", "failed", "solved twice"]))
    def end(self, data: st.DataObject, name: str, how: str) -> None:
        node = self.nodes[name]
        if not node.running:
            return
        order = node.running.pop(data.draw(st.sampled_from(sorted(node.running))))
        if order.leaves:
            last = len(order.leaves)
            done = data.draw(st.integers(0, last - 1)) if how == "failed" else last
            for event in tree_ended(name, order, done) * (2 if how == "solved twice" else 1):
                self._report(event)
            return
        report = failed(name, order) if how == "failed" else solved(name, order)
        self._report(report)
        if how == "solved twice":
            self._report(report)

    def _report(self, event: EpisodeEnded) -> None:
        report = event.report
        spec = self.specs.get(report.run_id)
        if report.published and spec and self._members(report.run_id, report.group_id) < spec.group_size:
            self.store[report.run_id].add(report.rollout_id)
        self.tell(event)

    @rule(data=st.data(), name=st.sampled_from(NODES))
    def die(self, data: st.DataObject, name: str) -> None:
        """Kill the agent and restart it with some of its episodes."""
        node = self.nodes[name]
        keeps = data.draw(st.sets(st.sampled_from(sorted(node.running)))) if node.running else set()
        self.begin_anew(name, keeps)

    def begin_anew(self, name: str, keeps: set[str]) -> None:
        node = self.nodes[name]
        node.incarnation += 1
        node.running = {rollout: order for rollout, order in node.running.items() if rollout in keeps}
        node.mail.clear()
        node.sandboxes.clear()

    @rule(name=st.sampled_from(NODES))
    def lose(self, name: str) -> None:
        """Report a node as lost that may be alive."""
        self.tell(NodeLost(name))

    @rule(name=st.sampled_from(NODES))
    def leave(self, name: str) -> None:
        """Stop the episodes of a node and let the node leave."""
        node = self.nodes[name]
        self.spared |= {episode.key for episode in self._running() if episode.node_id == name}
        for order in node.running.values():
            self.tell(stopped(name, order))
        self.spared |= {episode.key for episode in self._running() if episode.node_id == name}
        self.tell(NodeLeft(name))
        self.begin_anew(name, set())

    @rule(name=st.sampled_from(NODES))
    def drain(self, name: str) -> None:
        self.nodes[name].draining = not self.nodes[name].draining

    @rule(name=st.sampled_from(NODES), drain=st.booleans())
    def drain_by_operator(self, name: str, drain: bool) -> None:
        self.tell(NodeDrained(name, drain))
        node = self.scheduler.fleet.get(name)
        assert node is None or node.draining == drain

    # What the scheduler's shell does

    @precondition(lambda self: self.failures)
    @rule()
    def publish_failure(self) -> None:
        command = self.failures.pop()
        order = command.assignment
        assert order.final
        for index in order.leaves or (order.group_index,):
            self._report(failed("", order.leaf(index), command.failure))

    @rule(passed_s=st.floats(0.1, 20.0))
    def tick(self, passed_s: float) -> None:
        self.now += passed_s
        self.tell(Tick())

    @rule()
    def restart(self) -> None:
        """Restart the scheduler from the content of the store."""
        self.scheduler = Scheduler(SETTINGS, hold_until=self.now + 3.0)
        self.failures.clear()
        self.spared.clear()
        for run_id, spec in self.specs.items():
            if run_id in self.finished | self.cancelled:
                continue
            accepted: dict[str, list[int]] = {}
            for rollout in self.store[run_id]:
                group, _, index = rollout.rpartition("-")
                accepted.setdefault(group, []).append(int(index))
            self.most_held[run_id] = len(accepted)
            paused = run_id in self.paused
            told = GroupFeedback(stale=tuple(self.stale[run_id]))
            self.tell(RunSubmitted(spec, accepted, paused, self.learners[run_id], told))

    def teardown(self) -> None:
        """Check that all runs end if no further faults occur."""
        if not hasattr(self, "nodes"):
            return
        for run_id in sorted(self.paused - self.finished - self.cancelled):
            self.steer_resume(run_id)
        rng = random.Random(0)
        for _ in range(600):
            if not self.scheduler.runs:
                break
            self.now += 1.0
            self.tell(Tick())
            while self.failures:
                self.publish_failure()
            for name, node in self.nodes.items():
                self.tell(NodeDrained(name, drain=False))
                node.draining = False
                node.sandboxes.clear()
                self.deliver(name, lose=False)
                for rollout in [rollout for rollout in node.running if rng.random() < 0.5]:
                    order = node.running.pop(rollout)
                    for event in tree_ended(name, order, len(order.leaves)) if order.leaves else [solved(name, order)]:
                        self._report(event)
                self.send_beat(name, None)
            for run_id in sorted(self.scheduler.runs):
                self.train(run_id)
        assert self.specs.keys() == self.finished | self.cancelled

    def train(self, run_id: str) -> None:
        """Ack each complete group of a run, and announce a version."""
        spec, learner = self.specs[run_id], self.learners[run_id]
        whole = sum(self._members(run_id, group) == spec.group_size for group in self._groups(run_id))
        version = (learner.policy_version or 0) + 1
        self.learners[run_id] = replace(learner, acked=whole - learner.dropped, policy_version=version)
        self.tell(LearnerProgressed(run_id, self.learners[run_id]))

    def steer_resume(self, run_id: str) -> None:
        self.paused.discard(run_id)
        self.tell(RunResumed(run_id))


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestScheduler = SchedulerMachine.TestCase


def test_thousand_failing_nodes_finish_all_runs() -> None:
    """Nodes fail, vanish and return; each member is accepted once and no slot is assigned twice."""
    rng = random.Random(7)
    scheduler = Scheduler()
    names = [f"n{number:04d}" for number in range(1000)]
    specs = {
        run_id: run_spec(run_id, groups=800, group_size=4, tasks=tuple(task(f"t{i}") for i in range(20)))
        for run_id in ("r", "s", "t")
    }
    running: dict[str, dict[str, EpisodeAssignment]] = {name: {} for name in names}
    accepted: Counter[str] = Counter()
    finished: set[str] = set()
    now = 0.0

    def tell(event: Event) -> None:
        for command in scheduler.handle(event, now):
            match command:
                case StartEpisode(node_id, order):
                    assert len(running[node_id]) < 4
                    running[node_id][order.rollout_id] = order
                case StopEpisode(node_id, rollout_id):
                    running[node_id].pop(rollout_id, None)
                case PublishFailure(order, failure):
                    accepted[order.rollout_id] += 1
                    tell(failed("", order, failure))
                case RunFinished(run_id):
                    finished.add(run_id)

    for spec in specs.values():
        tell(RunSubmitted(spec))
    for _ in range(60):
        now += 1.0
        tell(Tick())
        for name in names:
            if rng.random() < 0.002:
                running[name].clear()
                tell(NodeLost(name))
            for rollout in [rollout for rollout in running[name] if rng.random() < 0.3]:
                order = running[name].pop(rollout)
                report = failed(name, order) if rng.random() < 0.05 else solved(name, order)
                accepted[rollout] += report.report.published
                tell(report)
            tell(beat(name, slots=4, running={rollout: order.attempt for rollout, order in running[name].items()}))
        if finished == specs.keys():
            break
    scheduler.validate(now)
    assert finished == specs.keys()
    assert len(accepted) == sum(spec.groups * spec.group_size for spec in specs.values())
    assert set(accepted.values()) == {1}

"""Prometheus series of the scheduler's process, in a registry of their own.

Those of the gateway itself, ``farm_http_*``, are the gateway's; an operator scrapes both in one answer.
"""

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from farm.core.run import EpisodeReport, is_requested
from farm.core.untrainable_reasons import INCONSISTENT, NO_TOKENS
from farm.rewards.distribution import BOUNDS
from farm.scheduler.status import PACED_BY, ArchiveStatus, FarmStatus

NODE_STATES = ("open", "full", "draining", "pressed", "unwell", "lost")
NODE_GAUGES = (
    ("slots", "slots", "Slots of a node"),
    ("running", "running", "Episodes that hold a slot of a node"),
    ("sandboxes", "sandboxes", "Learner sandboxes that hold a slot of a node"),
    ("cpu_load", "cpu_load", "Runnable threads per core"),
    ("memory_used_ratio", "memory_load", "Used part of a node's memory"),
    ("disk_used_ratio", "disk_load", "Used part of a node's disk"),
    ("beat_age_seconds", "seen_s", "Seconds since a node's last heartbeat"),
)
BY_POLICY = {
    "episodes": "Published episodes",
    "terminal_only_episodes": "Of these, those that only used a terminal",
    "flagged_episodes": "Of these, those with an audit flag",
    "edit_calls": "Successful edits by an edit tool",
    "malformed_calls": "Tool calls that could not be run",
}
PLUGIN_FAILED = "plugin_failed."
NOT_PHASES = frozenset({"total_s", "overhead_s", "turnaround_s"})
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
TURNS = (0, 1, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 500)


@dataclass(slots=True)
class FarmSnapshot:
    """The values that the gauges show at a scrape. ``queue`` sums the counters of the stored runs by their names in the
    store. ``refills`` counts the fresh tries since the scheduler started.
    """

    status: FarmStatus = field(default_factory=lambda: FarmStatus((), ()))
    queue: Mapping[str, float] = field(default_factory=dict)
    refills: int = 0


class FarmMetrics:
    """The farm's metrics. Each report adds to the series of episodes; a scrape reads the rest from ``snapshot``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.snapshot = FarmSnapshot()
        self._episodes = Counter(
            "farm_episodes", "Episodes whose rollout is published", ("status", "stop_reason"), registry=self.registry
        )
        self._failures = Counter(
            "farm_episode_failures",
            "Attempts that failed; retried=yes: another follows",
            ("origin", "type", "retried"),
            registry=self.registry,
        )
        self._untrainable = Counter(
            "farm_untrainable_episodes",
            "Published episodes with no or inconsistent tokens",
            ("reason",),
            registry=self.registry,
        )
        self._reward = Histogram("farm_reward", "Rewards of published episodes", buckets=BOUNDS, registry=self.registry)
        self._phase = Histogram(
            "farm_phase_seconds",
            "Seconds an episode spent by phase",
            ("phase",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self._episode_s = Histogram(
            "farm_episode_seconds", "Seconds from boot to verdict", buckets=SECONDS, registry=self.registry
        )
        self._overhead = Histogram(
            "farm_episode_overhead_seconds",
            "Seconds of an episode that were neither its policy's nor its test command's",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._dispatch = Histogram(
            "farm_dispatch_seconds",
            "Seconds for assigning an episode and reporting its end",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
            registry=self.registry,
        )
        self._turns = Histogram("farm_turns", "Turns of an episode", buckets=TURNS, registry=self.registry)
        self._tool_calls = Counter("farm_tool_calls", "Tool calls", registry=self.registry)
        self._tool_failures = Counter("farm_tool_failures", "Tool calls that failed", registry=self.registry)
        self._malformed = Counter(
            "farm_malformed_calls", "Tool calls that could not be run", ("kind",), registry=self.registry
        )
        self._tokens = Counter("farm_tokens", "Tokens of published episodes", ("kind",), registry=self.registry)
        self._egress = Counter(
            "farm_egress_requests", "Requests of sandboxes to their proxies", ("verdict",), registry=self.registry
        )
        self._by_policy = {
            name: Counter(f"farm_policy_{name}", text, ("policy",), registry=self.registry)
            for name, text in BY_POLICY.items()
        }
        self._audit = Counter(
            "farm_audit",
            "Tool calls that the audit flagged",
            ("policy", "kind"),
            registry=self.registry,
        )
        self._plugin_failures = Counter(
            "farm_reward_plugin_failures",
            "Episodes that a reward plug-in could not measure",
            ("plugin",),
            registry=self.registry,
        )
        self._decision = Histogram(
            "farm_scheduler_event_seconds",
            "Seconds the scheduler spent on one event",
            buckets=(1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1),
            registry=self.registry,
        )
        self._restarted = Gauge(
            "farm_scheduler_started_timestamp_seconds",
            "Unix time at which this scheduler started",
            registry=self.registry,
        )
        self._restarted.set_to_current_time()
        self.registry.register(self)

    def observe(self, report: EpisodeReport, held_s: float | None) -> None:
        """Count an episode's report.

        ``held_s``: seconds since the episode was assigned, or None if another scheduler assigned it.
        """
        if held_s is not None and "turnaround_s" in report.metrics:
            self._dispatch.observe(max(0.0, held_s - report.metrics["turnaround_s"]))
        if report.failure:
            retried = "no" if report.published else "yes"
            self._failures.labels(report.failure.origin.value, report.failure.type, retried).inc()
        if not report.published:
            return
        self._episodes.labels(report.status.value, report.stop_reason.value).inc()
        if report.reward is not None:
            self._reward.observe(report.reward)
        figures = report.metrics
        if figures.get(INCONSISTENT):
            self._untrainable.labels("inconsistent_tokens").inc()
        if figures.get(NO_TOKENS):
            self._untrainable.labels("no_tokens").inc()
        for name, value in figures.items():
            if name.startswith(PLUGIN_FAILED):
                self._plugin_failures.labels(name.removeprefix(PLUGIN_FAILED)).inc(value)
            elif name.endswith("_s") and name not in NOT_PHASES:
                self._phase.labels(name.removesuffix("_s")).observe(value)
            elif name.startswith("malformed_"):
                self._malformed.labels(name.removeprefix("malformed_")).inc(value)
            elif name.startswith("egress_"):
                self._egress.labels(name.removeprefix("egress_")).inc(value)
        self._observe_behaviour(report.policy, figures)
        if "total_s" in figures:
            self._episode_s.observe(figures["total_s"])
            self._overhead.observe(figures.get("overhead_s", 0.0))
            self._turns.observe(figures.get("turns", 0.0))
        self._tool_calls.inc(figures.get("tool_calls", 0.0))
        self._tool_failures.inc(figures.get("tool_failures", 0.0))
        self._tokens.labels("prompt").inc(figures.get("prompt_tokens", 0.0))
        self._tokens.labels("completion").inc(figures.get("completion_tokens", 0.0))

    def _observe_behaviour(self, policy: str, figures: Mapping[str, float]) -> None:
        flagged = {name: value for name, value in figures.items() if name.startswith("audit_") and value}
        counts = {
            "episodes": 1.0,
            "terminal_only_episodes": figures.get("terminal_only", 0.0),
            "flagged_episodes": float(bool(flagged)),
            "edit_calls": figures.get("edit_calls", 0.0),
            "malformed_calls": sum(value for name, value in figures.items() if name.startswith("malformed_")),
        }
        for name, value in counts.items():
            self._by_policy[name].labels(policy).inc(value)
        for name, value in flagged.items():
            self._audit.labels(policy, name.removeprefix("audit_")).inc(value)

    def decided(self, seconds: float) -> None:
        self._decision.observe(seconds)

    def expose(self) -> bytes:
        """Prometheus text format."""
        return bytes(generate_latest(self.registry))

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The gauges, called by the registry."""
        yield from self._nodes()
        runs = self.snapshot.status.runs
        requested = [run for run in runs if is_requested(run.run_id)]
        yield GaugeMetricFamily("farm_runs_active", "Runs that have not ended", len(runs) - len(requested))
        yield GaugeMetricFamily("farm_episodes_running", "Episodes that hold a slot", sum(run.running for run in runs))
        yield GaugeMetricFamily(
            "farm_episodes_waiting", "Episodes that wait for a slot", sum(run.waiting for run in runs)
        )
        yield GaugeMetricFamily("farm_requested_groups_running", "Requested groups that have not ended", len(requested))
        held_back = GaugeMetricFamily("farm_runs_waiting", "Runs that start no group, by cause", labels=("cause",))
        causes = Tally(run.paced_by for run in runs if run.paced_by)
        for cause in PACED_BY:
            held_back.add_metric((cause,), causes[cause])
        yield held_back
        yield CounterMetricFamily(
            "farm_episode_refills", "Fresh tries of members without a reward", self.snapshot.refills
        )
        yield from self._archive()
        yield from self._queue()

    def _archive(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        archive = self.snapshot.status.archive or ArchiveStatus("")
        yield CounterMetricFamily("farm_archived_rollouts", "Rollouts written to the archive", archive.rollouts)
        yield CounterMetricFamily("farm_archived_bytes", "Bytes of files written to the archive", archive.bytes)
        yield CounterMetricFamily("farm_archived_files", "Files written to the archive", archive.files)
        yield CounterMetricFamily("farm_archive_failures", "Failed tries to write to the archive", archive.failures)
        yield GaugeMetricFamily(
            "farm_archive_out", "1 if the last try to archive failed: nothing is deleted", float(bool(archive.outage))
        )
        done = GaugeMetricFamily(
            "farm_archive_done_timestamp_seconds", "Unix time at which all that was due was archived last"
        )
        if archive.done_at is not None:
            done.add_metric((), archive.done_at)
        yield done

    def _nodes(self) -> Iterator[GaugeMetricFamily]:
        nodes = self.snapshot.status.nodes
        by_state = GaugeMetricFamily("farm_nodes", "Nodes by state", labels=("state",))
        tally = Tally(node.state for node in nodes)
        for state in NODE_STATES:
            by_state.add_metric((state,), tally[state])
        yield by_state
        for name, attribute, text in NODE_GAUGES:
            family = GaugeMetricFamily(f"farm_node_{name}", text, labels=("node",))
            for node in nodes:
                if node.lost_at is None or attribute == "seen_s":
                    family.add_metric((node.node_id,), float(getattr(node, attribute)))
            yield family
        lost = GaugeMetricFamily("farm_node_lost_timestamp_seconds", "Unix time of a node's loss", labels=("node",))
        for node in nodes:
            if node.lost_at is not None:
                lost.add_metric((node.node_id,), node.lost_at)
        yield lost

    def _queue(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        queue = self.snapshot.queue
        complete, read = queue.get("groups_complete", 0.0), queue.get("groups_read", 0.0)
        dropped = queue.get("dropped_zero_variance", 0.0) + queue.get("dropped_stale", 0.0)
        acked, restored = queue.get("groups_acked", 0.0), queue.get("groups_restored", 0.0)
        depth = GaugeMetricFamily(
            "farm_queue_groups",
            "Complete groups: early (not in turn), ready, leased and not acked, acked provisionally",
            labels=("state",),
        )
        depth.add_metric(("early",), queue.get("groups_early", 0.0))
        depth.add_metric(("ready",), complete - read)
        depth.add_metric(("unacked",), read - acked - dropped + restored)
        depth.add_metric(("provisional",), queue.get("groups_provisional", 0.0))
        yield depth
        yield CounterMetricFamily("farm_groups_complete", "Groups completed", complete)
        complete_requests = queue.get("requests_complete", 0.0)
        yield CounterMetricFamily("farm_requested_groups_complete", "Requested groups completed", complete_requests)
        yield CounterMetricFamily("farm_groups_acked", "Groups acked", acked)
        yield CounterMetricFamily(
            "farm_groups_redelivered",
            "Groups leased again, after an expiry or a nack",
            queue.get("groups_redelivered", 0.0),
        )
        yield CounterMetricFamily("farm_groups_restored", "Acked groups that a restore of a learner freed", restored)
        yield CounterMetricFamily("farm_groups_dropped", "Groups that a lease dropped: zero variance or stale", dropped)
        yield CounterMetricFamily("farm_groups_dropped_stale", "Of these, stale ones", queue.get("dropped_stale", 0.0))
        yield CounterMetricFamily(
            "farm_groups_returned", "Stale groups whose task gets another group", queue.get("groups_returned", 0.0)
        )
        yield GaugeMetricFamily(
            "farm_queue_bytes",
            "Stored bytes of rollouts whose group is neither acked nor dropped",
            queue.get("bytes_queued", 0.0),
        )
        yield GaugeMetricFamily(
            "farm_provisional_bytes",
            "Stored bytes of groups that are acked provisionally",
            queue.get("bytes_provisional", 0.0),
        )
        yield CounterMetricFamily(
            "farm_rollouts_surplus",
            "Aborted members of groups that were complete without them",
            queue.get("surplus", 0.0),
        )
        yield CounterMetricFamily("farm_rollouts_accepted", "Rollouts in the store", queue.get("accepted", 0.0))
        yield CounterMetricFamily("farm_rollouts_unjudged", "Rollouts without a reward", queue.get("unjudged", 0.0))
        yield CounterMetricFamily(
            "farm_rollouts_solved", "Rollouts with the highest possible verdict", queue.get("solved", 0.0)
        )

"""What a report becomes in the scheduler's series."""

from dataclasses import replace

from farm.core.rollout import Status, StopReason
from farm.core.run import EpisodeReport
from farm.scheduler.metrics import FarmMetrics, FarmSnapshot
from farm.scheduler.status import ArchiveStatus, FarmStatus

REPORT = EpisodeReport(
    rollout_id="run-a-g000000-000",
    attempt=1,
    run_id="run-a",
    group_id="run-a-g000000",
    task_id="t",
    status=Status.COMPLETED,
    stop_reason=StopReason.AGENT_DONE,
    reward=1.0,
    failure=None,
    published=True,
    metrics={"turns": 2.0, "untrainable_inconsistent_tokens": 0.0},
)


def value(metrics: FarmMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_episode_with_inconsistent_tokens_is_counted_once() -> None:
    metrics = FarmMetrics()
    metrics.observe(REPORT, None)
    distrusted = replace(REPORT, metrics={"untrainable_inconsistent_tokens": 3.0})
    metrics.observe(distrusted, None)
    metrics.observe(replace(distrusted, published=False), None)
    assert value(metrics, "farm_untrainable_episodes_total", reason="inconsistent_tokens") == 1.0
    assert value(metrics, "farm_episodes_total", status="completed", stop_reason="agent_done") == 2.0
    assert b"farm_untrainable_episodes_total" in metrics.expose()


def test_an_episode_without_tokens_is_counted() -> None:
    metrics = FarmMetrics()
    metrics.observe(replace(REPORT, metrics={"untrainable_no_tokens": 2.0}), None)
    assert value(metrics, "farm_untrainable_episodes_total", reason="no_tokens") == 1.0


def test_egress_requests_are_counted_by_verdict() -> None:
    metrics = FarmMetrics()
    asked = {"egress_allowed": 3.0, "egress_refused": 2.0, "egress_failed": 0.0}
    for report in (REPORT, replace(REPORT, metrics=asked), replace(REPORT, metrics=asked)):
        metrics.observe(report, None)
    counts = [value(metrics, "farm_egress_requests_total", verdict=verdict) for verdict in ("allowed", "refused")]
    assert counts == [6.0, 4.0]


def test_malformed_calls_are_counted_by_kind() -> None:
    metrics = FarmMetrics()
    malformed = {"malformed_unknown_tool": 1.0, "malformed_bad_json": 0.0, "malformed_bad_arguments": 4.0}
    for report in (REPORT, replace(REPORT, metrics=malformed), replace(REPORT, metrics=malformed)):
        metrics.observe(report, None)
    kinds = ("unknown_tool", "bad_json", "bad_arguments")
    assert [value(metrics, "farm_malformed_calls_total", kind=kind) for kind in kinds] == [2.0, 0.0, 8.0]


def test_policy_behaviour_is_counted_by_policy_name() -> None:
    metrics = FarmMetrics()
    plain = {"terminal_only": 0.0, "edit_calls": 3.0, "malformed_bad_json": 1.0, "audit_history": 0.0}
    sly = {"terminal_only": 1.0, "edit_calls": 0.0, "audit_history": 2.0, "audit_tests": 1.0}
    metrics.observe(replace(REPORT, policy="one", metrics=plain), None)
    for policy in ("one", "two"):
        metrics.observe(replace(REPORT, policy=policy, metrics=sly), None)
    metrics.observe(replace(REPORT, policy="one", metrics=sly, published=False), None)
    series = ("episodes", "terminal_only_episodes", "flagged_episodes", "edit_calls", "malformed_calls")
    assert [value(metrics, f"farm_policy_{name}_total", policy="one") for name in series] == [2.0, 1.0, 1.0, 3.0, 1.0]
    assert value(metrics, "farm_audit_total", policy="one", kind="history") == 2.0
    assert value(metrics, "farm_audit_total", policy="two", kind="tests") == 1.0
    assert value(metrics, "farm_audit_total", policy="two", kind="server") is None


def test_failed_plugins_are_counted_under_any_name() -> None:
    metrics = FarmMetrics()
    metrics.observe(replace(REPORT, metrics={"plugin_failed.length_s": 1.0}), None)
    assert value(metrics, "farm_reward_plugin_failures_total", plugin="length_s") == 1.0
    assert value(metrics, "farm_phase_seconds_count", phase="plugin_failed.length") is None


def test_archive_is_counted_and_its_outage_shown() -> None:
    metrics = FarmMetrics()
    assert value(metrics, "farm_archive_out") == 0.0
    assert value(metrics, "farm_archive_done_timestamp_seconds") is None
    archive = ArchiveStatus("/kept").added(5, 700, 1).added(2, 300, 0).failed("No space left on device")
    metrics.snapshot = FarmSnapshot(FarmStatus((), (), archive=archive))
    names = ("archived_rollouts_total", "archived_bytes_total", "archived_files_total", "archive_failures_total")
    assert [value(metrics, f"farm_{name}") for name in names] == [7.0, 1000.0, 2.0, 1.0]
    assert value(metrics, "farm_archive_out") == 1.0
    metrics.snapshot = FarmSnapshot(FarmStatus((), (), archive=archive.done()))
    assert value(metrics, "farm_archive_out") == 0.0
    assert value(metrics, "farm_archive_done_timestamp_seconds") is not None

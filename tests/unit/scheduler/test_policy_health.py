"""Admission stops while a policy fails, and probes find the end of the outage."""

from farm.core.policy_document import EndpointFigures
from farm.scheduler.policy_health import MAX_PROBE_S, MIN_FAILURES, PROBE_S, PolicyHealth, merge


def figures(calls: int, failures: int, why: str = "it answers 500") -> dict[str, tuple[EndpointFigures, ...]]:
    return {"main": (EndpointFigures("http://a/v1", calls, failures, False, why),)}


def test_mostly_failing_policy_stops_admission() -> None:
    health = PolicyHealth()
    health.update(figures(2 * MIN_FAILURES, MIN_FAILURES), now=100.0)
    assert not health.admits("main", 100.0)
    assert health.outage("main") == "it answers 500"
    assert health.admits("other", 100.0)


def test_few_or_rare_failures_admit() -> None:
    health = PolicyHealth()
    health.update(figures(MIN_FAILURES - 1, MIN_FAILURES - 1), now=0.0)
    health.update(figures(100, 40), now=1.0)
    assert health.admits("main", 1.0)


def test_failures_of_all_nodes_add_up() -> None:
    health = PolicyHealth()
    health.update(merge([figures(2, 2), figures(1, 1), figures(2, 2)]), now=0.0)
    assert not health.admits("main", 0.0)


def test_probes_start_rarely_until_recovery() -> None:
    health, now = PolicyHealth(), 0.0
    health.update(figures(9, 9), now)
    waits = []
    for _ in range(8):
        began = now
        while not health.admits("main", now):
            now += 1.0
        health.started("main", now)
        waits.append(now - began)
    assert waits[0] == PROBE_S
    assert waits[1] == 2 * PROBE_S
    assert waits[-1] == MAX_PROBE_S
    assert health.update(figures(1, 1), now) == []
    assert health.update(figures(3, 1), now) == ["main"]
    assert health.admits("main", now)


def test_silence_does_not_end_an_outage() -> None:
    health = PolicyHealth()
    health.update(figures(9, 9), now=0.0)
    health.update({}, now=60.0)
    assert health.failing == {"main"}


def test_policy_without_runs_is_forgotten() -> None:
    health = PolicyHealth()
    health.update(figures(9, 9), now=0.0)
    health.forget_all_but(["other"])
    assert health.failing == frozenset()

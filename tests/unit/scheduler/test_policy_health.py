"""Admission stops while a policy fails, and probes find the end of the outage."""

from dataclasses import replace

from farm.core.policy_document import EndpointFigures
from farm.core.run import PolicySpec
from farm.scheduler.messages import Event, RunSubmitted, StartEpisode, Tick
from farm.scheduler.policy_health import MAX_PROBE_S, MIN_FAILURES, PROBE_S, PolicyHealth, merge
from farm.scheduler.state_machine import Scheduler
from tests.support.farm.scheduler_values import beat, run_spec


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


def begun(scheduler: Scheduler, event: Event, now: float) -> int:
    commands = scheduler.handle(event, now)
    scheduler.validate(now)
    return sum(isinstance(command, StartEpisode) for command in commands)


def test_failing_policy_gets_probes_then_all() -> None:
    """Other runs go on meanwhile, and the run of the failing policy stays alive."""
    scheduler = Scheduler()
    main, other = (PolicySpec("openai", policy=name) for name in ("main", "other"))
    failing = replace(beat("a", slots=8), endpoints=figures(9, 9))
    assert begun(scheduler, failing, 0.0) == 0
    run = replace(run_spec(groups=4, group_size=2), policy=main)
    scheduler.handle(Tick(), 0.0)
    assert scheduler.policies.failing == frozenset(), "no run uses the policy yet"
    assert begun(scheduler, RunSubmitted(replace(run, concurrency=2)), 0.0) == 2
    scheduler.handle(Tick(), 1.0)
    assert scheduler.policies.failing == {"main"}
    second = replace(run, run_id="s")
    assert begun(scheduler, RunSubmitted(second), 2.0) == 0
    why = "requests to main fail (it answers 500); only probes start until they succeed"
    assert scheduler.why_waiting("s", 2.0) == why
    assert begun(scheduler, RunSubmitted(replace(run, run_id="t", policy=other, concurrency=1)), 2.0) == 1
    now = 2.0
    while not (started := begun(scheduler, replace(failing, images=None), now)):
        now += 1.0
    assert (started, now) == (1, 1.0 + PROBE_S)
    healthy = replace(failing, endpoints=figures(4, 0), images=None)
    scheduler.handle(healthy, now)
    assert begun(scheduler, Tick(), now) == 4, "the other slots of the node"
    assert scheduler.policies.failing == frozenset()

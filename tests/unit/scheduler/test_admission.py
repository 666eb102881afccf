"""A node that is pressed takes nothing more, one that is nearly so comes last, and neither changes with each beat."""

from collections import Counter
from dataclasses import replace

import pytest

from farm.scheduler.admission import Admission, AdmissionSettings, judge
from farm.scheduler.messages import Heartbeat, Load, PressureStall, RunSubmitted
from tests.support.farm.scheduler_driver import Driver, starts
from tests.support.farm.scheduler_values import beat, run_spec, task

SETTINGS = AdmissionSettings()
CALM = Load(cpu=1.0, memory=0.5, disk=0.5)


def judged(*beats: Heartbeat, every_s: float = 1.0) -> list[Admission]:
    """Return the admission of a node after each of its heartbeats."""
    found, before = [], Admission()
    for number, told in enumerate(beats):
        before = judge(before, told, SETTINGS, number * every_s)
        found.append(before)
    return found


def with_load(**figures: float) -> Heartbeat:
    return beat("a", load=replace(CALM, **figures))


def test_healthy_node_is_open_without_reason() -> None:
    assert judged(with_load()) == [Admission()]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (with_load(memory=0.96), "its memory is 96% used"),
        (with_load(disk=0.96), "its disk is 96% full"),
        (
            beat("a", load=replace(CALM, memory=0.85), pressure=PressureStall(memory_some=0.3)),
            "its tasks wait for memory 30% of the time",
        ),
        (
            replace(with_load(), disk_free_mib=10_000, image_disk_free_mib=500),
            "only 500 MiB of a disk of it are free",
        ),
    ],
)
def test_readings_over_limit_close_node(told: Heartbeat, why: str) -> None:
    [found] = judged(told)
    assert found.closed
    assert found.why == why


@pytest.mark.parametrize(
    "told",
    [
        with_load(memory=0.85),
        with_load(disk=0.92),
        with_load(cpu=6.0),
        beat("a", load=CALM, pressure=PressureStall(cpu_some=0.95)),
        beat("a", load=CALM, pressure=PressureStall(io_some=0.9, io_full=0.9)),
        replace(with_load(), disk_free_mib=3000),
    ],
)
def test_readings_near_limit_make_node_avoided(told: Heartbeat) -> None:
    [found] = judged(told)
    assert found.near
    assert found.why
    assert not found.closed


def test_sandbox_at_own_limit_closes_no_node() -> None:
    """The sandbox always waits for memory, disk and CPU on a host that has enough of each."""
    stalls = PressureStall(cpu_some=1.0, memory_some=1.0, memory_full=1.0, io_some=1.0, io_full=1.0)
    [found] = judged(beat("a", load=replace(CALM, cpu=250.0), pressure=stalls))
    assert not found.closed


def test_closed_node_reopens_below_threshold_after_cooldown() -> None:
    beats = [with_load(memory=0.96), *[with_load(memory=0.92)] * 20, *[with_load(memory=0.89)] * 7]
    shut = [found.closed for found in judged(*beats)]
    assert shut == [True] * 21 + [True] * 4 + [False] * 3
    told = judged(*beats)[21:23]
    assert {found.why for found in told} == {"a moment ago: its memory is 92% used"}


def test_cooldown_applies_only_to_reading_that_closed() -> None:
    """A disk below its limit does not keep a node closed that its memory closed."""
    after = judged(with_load(memory=0.96, disk=0.94), *[with_load(disk=0.94)] * 6)[-1]
    assert not after.closed
    assert after.near


@pytest.mark.parametrize("high", [{"memory": 0.99}, {"disk": 0.99}])
def test_flapping_node_stays_closed(high: dict[str, float]) -> None:
    """The reading alternates between low and high with each heartbeat."""
    beats = [with_load(**high) if number % 2 == 0 else with_load() for number in range(60)]
    assert all(found.closed for found in judged(*beats))
    assert not judged(*beats, *[with_load()] * 6)[-1].closed


# In the scheduler


def test_flapping_node_gets_no_episodes() -> None:
    driver = Driver()
    driver.tell(beat("flaps", slots=50, load=replace(CALM, memory=0.99)))
    driver.tell(beat("well", slots=50, load=CALM))
    driver.tell(RunSubmitted(run_spec(groups=40, concurrency=1)))
    begun: list[str] = []
    for second in range(40):
        load = replace(CALM, memory=0.99 if second % 2 else 0.5)
        running = {e.rollout_id: e.attempt for node in driver.scheduler.fleet for e in node.held.values()}
        begun += [s.node_id for s in starts(driver.tell(beat("flaps", slots=50, load=load), after_s=1.0))]
        begun += [s.node_id for s in starts(driver.tell(beat("well", slots=50, load=CALM, running=running)))]
    assert set(begun) <= {"well"}
    assert not driver.scheduler.fleet.get("flaps").held  # type: ignore[union-attr]  # it has just told its beat


def test_nearly_overloaded_node_is_avoided_despite_its_image() -> None:
    driver = Driver()
    driver.tell(beat("near", slots=4, load=replace(CALM, memory=0.85), images=frozenset({"image-t"})))
    driver.tell(beat("easy", slots=2, load=CALM, images=frozenset()))
    begun = starts(driver.tell(RunSubmitted(run_spec(groups=1, group_size=6))))
    assert Counter(start.node_id for start in begun) == {"easy": 2, "near": 4}
    assert begun[0].node_id == begun[1].node_id == "easy"


def test_image_decides_if_all_nodes_nearly_overloaded() -> None:
    driver = Driver()
    driver.tell(beat("a", slots=4, load=replace(CALM, memory=0.85), images=frozenset()))
    driver.tell(beat("b", slots=4, load=replace(CALM, memory=0.85), images=frozenset({"image-t"})))
    begun = starts(driver.tell(RunSubmitted(run_spec(group_size=4, tasks=(task("t"),)))))
    assert {start.node_id for start in begun} == {"b"}


def test_open_node_reports_degraded_features() -> None:
    driver = Driver()
    driver.tell(replace(with_load(), degraded=("disks have no limits here",)))
    (node,) = driver.scheduler.fleet
    assert node.availability(driver.now, driver.scheduler.settings) == ("open", "disks have no limits here")
    driver.tell(replace(with_load(memory=0.99), degraded=("disks have no limits here",)))
    assert node.availability(driver.now, driver.scheduler.settings) == ("pressed", "its memory is 99% used")


def test_waiting_reason_names_scarce_resources() -> None:
    driver = Driver()
    driver.tell(beat("a", load=replace(CALM, memory=0.99)))
    driver.tell(beat("b", load=replace(CALM, disk=0.99)))
    assert driver.tell(RunSubmitted(run_spec())) == []
    assert driver.why() == "a: its memory is 99% used; b: its disk is 99% full"
    driver.tell(beat("a", load=CALM), after_s=1.0)
    assert "a: a moment ago: its memory is 99% used" in driver.why()
    assert len(starts(driver.tell(beat("a", load=CALM), after_s=4.0))) == 1

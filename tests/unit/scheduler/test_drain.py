"""A node that an operator drains gets no more episodes, whatever becomes of its agent, until it is resumed."""

import pytest

from farm.scheduler.messages import Command, DrainNode, NodeDrained, NodeLeft, NodeLost, RunSubmitted, StartEpisode
from farm.scheduler.state_machine import Scheduler
from tests.support.farm.scheduler_values import beat, run_spec


def started(commands: list[Command]) -> int:
    return sum(isinstance(command, StartEpisode) for command in commands)


def test_a_drained_node_gets_no_more_episodes_until_it_is_resumed() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n"), 0.0)
    assert scheduler.handle(NodeDrained("n"), 1.0) == [DrainNode("n", drain=True)]
    assert started(scheduler.handle(RunSubmitted(run_spec()), 2.0)) == 0
    assert scheduler.why_waiting("r", 2.0) == "n: it is draining"
    assert started(scheduler.handle(beat("n", draining=True), 3.0)) == 0
    resumed = scheduler.handle(NodeDrained("n", drain=False), 4.0)
    assert resumed[0] == DrainNode("n", drain=False)
    assert started(resumed) == 1


def test_a_drain_that_was_lost_on_the_way_is_sent_again() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    assert scheduler.handle(beat("n"), 2.0) == [DrainNode("n", drain=True)]
    assert scheduler.handle(beat("n", draining=True), 3.0) == []
    assert scheduler.handle(beat("n", draining=True), 4.0) == []


def test_a_node_stays_drained_if_its_agent_starts_anew() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n", incarnation="1"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(beat("n", incarnation="1", draining=True), 2.0)
    assert scheduler.handle(beat("n", incarnation="2"), 3.0) == [DrainNode("n", drain=True)]
    assert started(scheduler.handle(RunSubmitted(run_spec()), 4.0)) == 0


def test_a_drained_node_takes_episodes_after_its_next_farm_up() -> None:
    """Its agent was killed and said no good-bye, so the node is still known when it joins again."""
    scheduler = Scheduler()
    scheduler.handle(beat("n", incarnation="1", join="a"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(beat("n", incarnation="1", join="a", draining=True), 2.0)
    assert scheduler.handle(beat("n", incarnation="2", join="b"), 3.0) == []
    assert started(scheduler.handle(RunSubmitted(run_spec()), 4.0)) == 1


def test_a_node_that_left_and_joins_again_takes_episodes() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(NodeLeft("n"), 2.0)
    scheduler.handle(beat("n", incarnation="2"), 3.0)
    assert started(scheduler.handle(RunSubmitted(run_spec()), 4.0)) == 1


def test_a_node_that_nobody_knows_cannot_be_drained() -> None:
    assert Scheduler().handle(NodeDrained("n"), 0.0) == []


@pytest.mark.parametrize(("join", "starts"), [("a", 0), ("b", 1)])
def test_a_drained_node_that_was_lost_stays_drained_until_its_next_farm_up(join: str, starts: int) -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n", incarnation="1", join="a"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(beat("n", incarnation="1", join="a", draining=True), 2.0)
    scheduler.handle(NodeLost("n"), 3.0)
    drained = scheduler.handle(beat("n", incarnation="2", join=join), 4.0)
    assert drained == ([] if starts else [DrainNode("n", drain=True)])
    assert started(scheduler.handle(RunSubmitted(run_spec()), 5.0)) == starts
    scheduler.validate(5.0)

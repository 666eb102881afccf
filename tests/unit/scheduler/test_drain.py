"""A node that an operator drains gets no more episodes, whatever becomes of its agent, until it is resumed."""

import pytest

from farm.scheduler.messages import Command, DrainNode, NodeDrained, NodeLeft, NodeLost, RunSubmitted, StartEpisode
from farm.scheduler.state_machine import Scheduler
from tests.support.farm.scheduler_values import beat, run_spec


def started(commands: list[Command]) -> int:
    return sum(isinstance(command, StartEpisode) for command in commands)


def test_drained_node_gets_no_episodes_until_resumed() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n"), 0.0)
    assert scheduler.handle(NodeDrained("n"), 1.0) == [DrainNode("n", drain=True)]
    assert started(scheduler.handle(RunSubmitted(run_spec()), 2.0)) == 0
    assert scheduler.why_waiting("r", 2.0) == "n: it is draining"
    assert started(scheduler.handle(beat("n", draining=True), 3.0)) == 0
    resumed = scheduler.handle(NodeDrained("n", drain=False), 4.0)
    assert resumed[0] == DrainNode("n", drain=False)
    assert started(resumed) == 1


def test_lost_drain_command_is_resent() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    assert scheduler.handle(beat("n"), 2.0) == [DrainNode("n", drain=True)]
    assert scheduler.handle(beat("n", draining=True), 3.0) == []
    assert scheduler.handle(beat("n", draining=True), 4.0) == []


def test_node_stays_drained_if_agent_restarts() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n", incarnation="1"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(beat("n", incarnation="1", draining=True), 2.0)
    assert scheduler.handle(beat("n", incarnation="2"), 3.0) == [DrainNode("n", drain=True)]
    assert started(scheduler.handle(RunSubmitted(run_spec()), 4.0)) == 0


def test_drained_node_takes_episodes_after_farm_up() -> None:
    """The agent was killed without a leave event, so the node is still registered when it joins again."""
    scheduler = Scheduler()
    scheduler.handle(beat("n", incarnation="1", join="a"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(beat("n", incarnation="1", join="a", draining=True), 2.0)
    assert scheduler.handle(beat("n", incarnation="2", join="b"), 3.0) == []
    assert started(scheduler.handle(RunSubmitted(run_spec()), 4.0)) == 1


def test_node_that_left_and_rejoined_takes_episodes() -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(NodeLeft("n"), 2.0)
    scheduler.handle(beat("n", incarnation="2"), 3.0)
    assert started(scheduler.handle(RunSubmitted(run_spec()), 4.0)) == 1


def test_draining_unknown_node_sends_nothing() -> None:
    assert Scheduler().handle(NodeDrained("n"), 0.0) == []


@pytest.mark.parametrize(("join", "starts"), [("a", 0), ("b", 1)])
def test_lost_drained_node_stays_drained_until_farm_up(join: str, starts: int) -> None:
    scheduler = Scheduler()
    scheduler.handle(beat("n", incarnation="1", join="a"), 0.0)
    scheduler.handle(NodeDrained("n"), 1.0)
    scheduler.handle(beat("n", incarnation="1", join="a", draining=True), 2.0)
    scheduler.handle(NodeLost("n"), 3.0)
    drained = scheduler.handle(beat("n", incarnation="2", join=join), 4.0)
    assert drained == ([] if starts else [DrainNode("n", drain=True)])
    assert started(scheduler.handle(RunSubmitted(run_spec()), 5.0)) == starts
    scheduler.validate(5.0)

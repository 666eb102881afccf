"""Runs with a bound of staleness, and a simulated learner whose episodes take times of a long tail."""

from collections import Counter

import pytest

from farm.core.run import RETURNED
from farm.core.run_options.groups import GroupOptions, Stragglers
from tests.support.farm.staleness_simulation import BATCH, TASKS, Simulation


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
def test_lag_is_bounded_and_each_task_is_trained_once(max_staleness: int) -> None:
    options = GroupOptions(max_staleness=max_staleness, batch_groups=BATCH, stragglers=Stragglers.DROP)
    simulation = Simulation(options, seed=max_staleness)
    simulation.run()
    assert max(simulation.lags) <= max_staleness
    assert set(simulation.trained.values()) == {1}
    drops = Counter(ordinal % RETURNED for ordinal in simulation.dropped)
    twice = {ordinal for ordinal, count in drops.items() if count == 2}
    assert simulation.trained.keys() | twice == set(range(TASKS)), "only a task that was dropped twice is missing"
    assert not simulation.trained.keys() & twice


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
def test_run_that_waits_for_stragglers_drops_no_group(max_staleness: int) -> None:
    simulation = Simulation(GroupOptions(max_staleness=max_staleness, batch_groups=BATCH), seed=max_staleness)
    simulation.run()
    assert max(simulation.lags) <= max_staleness
    assert simulation.dropped == []
    assert simulation.trained == Counter(range(TASKS))


def test_run_without_bound_exceeds_the_lag() -> None:
    """The bound of the other runs has an effect: without it, the same learner trains on older groups."""
    simulation = Simulation(GroupOptions(), seed=4)
    simulation.run()
    assert max(simulation.lags) > 4
    assert simulation.trained.total() == TASKS

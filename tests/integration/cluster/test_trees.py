"""Trees in a farm: scheduler, node agents and store make each rollout of a group once."""

from collections import Counter

import pytest

from farm.core.run_options.branching import Branching
from farm.schemas.rollout import RolloutHead
from farm.store import RunState
from sandboxes.errors import BootError
from tests.integration.cluster.test_node_agent import cluster, sandboxes, server, store
from tests.support.farm.node_cluster import Cluster

__all__ = ["cluster", "server", "store"]

pytestmark = pytest.mark.redis

PAIR = Branching(2, (1,))


def attempts(heads: list[RolloutHead]) -> list[int]:
    return [head.attempt for head in sorted(heads, key=lambda head: head.rollout_id)]


async def test_run_of_trees_completes_its_groups(cluster: Cluster) -> None:
    await cluster.node("a", slots=2)
    await cluster.node("b", slots=1)
    await cluster.run(groups=2, group_size=4, branching=PAIR)
    heads = await cluster.ended()
    assert len({head.rollout_id for head in heads}) == len(heads) == 8
    assert {head.reward for head in heads} == {1.0}
    nodes = Counter(head.branches[0].node for head in heads)
    assert (len(nodes), set(nodes.values())) == (4, {2})
    assert {head.metrics["shared_turns"] for head in heads} == {1.0}
    lease = await cluster.store.lease("learner", "r", max_groups=2, lease_s=60.0)
    assert [len(group.rollout_ids) for group in lease.groups] == [4, 4]


async def test_tree_holds_one_slot(cluster: Cluster) -> None:
    """Two trees wait in their graders, in the two slots of the node; no branch is elsewhere."""
    await cluster.node("a", slots=2)
    cluster.gate.shut()
    await cluster.run(groups=3, group_size=2, branching=PAIR)
    await sandboxes(cluster, 2)
    [run] = cluster.shell.status().runs
    assert (run.running, run.waiting) == (2, 2)
    cluster.gate.open()
    assert len(await cluster.ended()) == 6


async def test_restarted_scheduler_keeps_running_tree(cluster: Cluster) -> None:
    await cluster.node("a", slots=1)
    cluster.gate.shut()
    await cluster.run(group_size=2, branching=PAIR)
    await sandboxes(cluster, 1)
    await cluster.restart()
    cluster.gate.open()
    assert attempts(await cluster.ended()) == [1, 1]


async def test_retry_of_tree_makes_missing_leaves(cluster: Cluster) -> None:
    """The second branch does not boot. The first one keeps its rollout."""
    await cluster.node("a", slots=1, boot_errors=[*[None] * 5, BootError("it did not answer")])
    await cluster.run(group_size=2, branching=PAIR)
    heads = await cluster.ended()
    assert attempts(heads) == [1, 2]
    assert {head.reward for head in heads} == {1.0}
    assert sorted(len(head.branches) for head in heads) == [0, 1]


async def test_tree_without_attempts_left_gives_null_rewards(cluster: Cluster) -> None:
    await cluster.node("a", slots=1, boot_errors=[BootError("it did not answer")] * 100)
    await cluster.run(group_size=2, max_attempts=2, branching=PAIR)
    heads = await cluster.ended()
    assert [head.reward for head in heads] == [None, None]
    assert {head.error.type for head in heads if head.error} == {"BootError"}


async def test_cancelled_tree_leaves_no_sandbox(cluster: Cluster) -> None:
    await cluster.node("a", slots=1)
    cluster.gate.shut()
    await cluster.run(group_size=2, branching=PAIR)
    await sandboxes(cluster, 1)
    await cluster.store.set_run_state("r", RunState.CANCELLED)
    cluster.shell.cancel("r")
    await sandboxes(cluster, 0)

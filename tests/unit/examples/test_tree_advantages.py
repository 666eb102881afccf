"""The advantages of a tree are those of its parts, and they add up along each path."""

from array import array
from dataclasses import replace

import pytest

from farm.core.rollout import BranchPoint, Rollout, Segment
from farm.examples.tree_advantages import tree_advantages
from tests.support.rollouts import make_rollout


def leaf(index: int, reward: float | None, *path: tuple[str, int, int], own: int = 6) -> Rollout:
    """Return a leaf of six tokens. ``path``: node, branch, token of each branch point. ``own`` tokens are trained."""
    points = tuple(
        BranchPoint(node, branch, 2, turn + 1, "", 0, token) for turn, (node, branch, token) in enumerate(path)
    )
    mask = bytes(6 - own) + b"\x01" * own
    segment = Segment(array("i", range(6)), mask, array("f", [0.0] * 6), (), 0, ())
    return replace(make_rollout(index=index, size=4, reward=reward), branches=points, segments=(segment,))


def test_parts_of_tree_have_their_own_advantages() -> None:
    """The root is worth 0.5. Its branch 0 is worth 1, and branch 1 is worth 0 on average of 0 and 0."""
    group = [
        leaf(0, 1.0, ("n", 0, 2), ("n.0", 0, 4)),
        leaf(1, 1.0, ("n", 0, 2), ("n.0", 1, 4), own=2),
        leaf(2, 0.0, ("n", 1, 2), ("n.1", 0, 4), own=4),
        leaf(3, 0.0, ("n", 1, 2), ("n.1", 1, 4), own=2),
    ]
    found = [tree_advantages(group)[rollout.rollout_id] for rollout in group]
    assert found == [
        [[0.0, 0.0, 0.5, 0.5, 0.0, 0.0]],
        [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]],
        [[0.0, 0.0, -0.5, -0.5, 0.0, 0.0]],
        [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]],
    ]


def test_rollout_without_branches_has_group_relative_advantage() -> None:
    group = [leaf(0, 1.0), leaf(1, 0.0, own=3), leaf(2, None)]
    found = tree_advantages(group)
    assert list(found.values()) == [[[0.5] * 6], [[0.0, 0.0, 0.0, -0.5, -0.5, -0.5]]]


def test_advantages_of_path_sum_to_that_of_rollout() -> None:
    group = [leaf(0, 0.25, ("n", 0, 3)), leaf(1, 0.75, ("n", 1, 3)), leaf(2, 1.0)]
    mean = (0.25 + 0.75 + 1.0) / 3
    for rollout in group:
        [advantages] = tree_advantages(group)[rollout.rollout_id]
        parts = {advantages[0], advantages[5]} if rollout.branches else {advantages[0]}
        assert rollout.reward is not None
        assert sum(parts) == pytest.approx(rollout.reward - mean)

"""What a node is likely to be ordered next, so that it can have sandboxes ready."""

import heapq
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice, zip_longest

from farm.core.run import TaskRef
from farm.scheduler.nodes import Node
from farm.scheduler.run_progress import RunProgress

RUNS, PLACES = 8, 32
"""So many of the runs that go first are looked at, and of their places in turn: the cost stays the same with any number
of nodes."""


def forecast_demand(
    node: Node, runs: Iterable[RunProgress], count: int, *, nodes: int
) -> tuple[tuple[TaskRef, int], ...]:
    """At most ``count`` sandboxes, by their tasks, those needed first at the front.

    Slots become free one by one as episodes end, so no more are expected than the node runs. Each order goes to
    whichever of the ``nodes`` has a slot free then, so until ``count`` of them have come here, so many times more have
    come in all; of those (the first, where that is many) a node's share is expected, where that is one at least, give
    or take a half. Only images are looked for that the node has, and of a run at its cap only where one of its
    episodes is.
    """
    count = min(count, len(node.held))
    ours = {episode.run_id for episode in node.held.values()}
    waiting = (run for run in runs if not run.paused and (not run.capped or run.spec.run_id in ours) and run.has_work)
    first = heapq.nsmallest(RUNS, waiting, key=lambda run: len(run.running))
    turns = chain.from_iterable(zip_longest(*(run.upcoming() for run in first)))
    coming = Counter(islice((task for task in turns if task is not None), min(count * nodes, PLACES)))
    expects: list[tuple[TaskRef, int]] = []
    left = count
    for task, places in coming.items():
        share = min(int(count * places / coming.total() + 0.5), left)
        if share and task.image in node.images:
            expects.append((task, share))
            left -= share
    return tuple(expects)

"""What a node is likely to be ordered next, so that it can have sandboxes ready."""

import heapq
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice, zip_longest

from farm.core.fleet import Node
from farm.core.orders import TaskRef
from farm.core.runs import Run


def expected(node: Node, runs: Iterable[Run], count: int) -> tuple[tuple[TaskRef, int], ...]:
    """At most ``count`` sandboxes, by their tasks, those needed first at the front.

    Slots become free one by one as episodes end, so no more are expected than the node runs; and the next order goes
    to whichever node that is. So only images are looked for that the node has, and of a run at its cap only where one
    of its episodes is.
    """
    count = min(count, len(node.held))
    ours = {episode.run_id for episode in node.held.values()}
    waiting = (run for run in runs if not run.paused and (not run.capped or run.spec.run_id in ours) and run.has_work)
    first = heapq.nsmallest(count, waiting, key=lambda run: len(run.running))
    turns = chain.from_iterable(zip_longest(*(run.upcoming() for run in first)))
    tasks = islice((task for task in turns if task is not None and task.image in node.images), count)
    return tuple(Counter(tasks).items())

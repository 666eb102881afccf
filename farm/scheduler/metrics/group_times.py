"""The time that a group takes, from its first start to its last rollout."""

from collections.abc import Callable
from dataclasses import dataclass, field

from farm.core.run import EpisodeAssignment, EpisodeReport

MOST_OPEN = 100_000
"""Groups that are followed at once. Beyond it the oldest one is forgotten and never observed."""


@dataclass(slots=True)
class _OpenGroup:
    began: float
    size: int
    published: set[str] = field(default_factory=set)


class GroupTimes:
    """Give the time of each group that is complete to ``observe``.

    A group that another scheduler began is not observed, because its start is unknown.
    """

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._open: dict[str, _OpenGroup] = {}

    def started(self, assignment: EpisodeAssignment, now: float) -> None:
        """Take in that an attempt starts. ``now``: by a clock that never goes backwards."""
        if assignment.group_id not in self._open:
            if len(self._open) >= MOST_OPEN:
                del self._open[next(iter(self._open))]
            self._open[assignment.group_id] = _OpenGroup(now, assignment.group_size)

    def published(self, report: EpisodeReport, now: float) -> None:
        """Take in the report of an episode. It counts if its rollout is published."""
        group = self._open.get(report.group_id)
        if group is None or not report.published:
            return
        group.published.add(report.rollout_id)
        if len(group.published) >= group.size:
            del self._open[report.group_id]
            self._observe(now - group.began)

    def ended(self, run_id: str) -> None:
        """Forget the groups of a run that is over."""
        for group_id in [one for one in self._open if one.rpartition("-g")[0] == run_id]:
            del self._open[group_id]

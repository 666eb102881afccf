"""The harness: the settings of a run that decide how a policy works, apart from its weights and its tasks."""

from dataclasses import dataclass
from enum import StrEnum

from farm.core.summaries import SummarySettings


class Thinking(StrEnum):
    """``drop``: the reasoning of earlier turns is absent from later requests."""

    KEEP = "keep"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Harness:
    """The harness of a run, apart from its tools and limits, which ``RunSpec`` and ``EpisodeAssignment`` hold.

    ``system_prompt`` None: the farm's own. ``parallel_calls`` False: of each message only the first tool call is run.
    ``summaries`` None: the policy works in one context until it is full.
    """

    system_prompt: str | None = None
    thinking: Thinking = Thinking.KEEP
    parallel_calls: bool = True
    summaries: SummarySettings | None = None


DEFAULT_HARNESS = Harness()

"""Events of a running episode, for a caller that follows it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from farm.core.rollout import Turn


class EventKind(StrEnum):
    TURN_STARTED = "turn_started"
    TURN_FINISHED = "turn_finished"
    GRADING = "grading"


@dataclass(frozen=True, slots=True)
class EpisodeEvent:
    """``at`` is Unix time in seconds; ``turn`` counts from 0; ``finished`` holds the turn of TURN_FINISHED."""

    kind: EventKind
    rollout_id: str
    attempt: int
    at: float
    turn: int
    finished: Turn | None = None


OnEvent = Callable[[EpisodeEvent], None]

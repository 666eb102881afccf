"""A run as the scheduler sees it: which of its places are accepted, running, waiting, or not begun."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from farm.core.run import EpisodeAssignment, RunSpec, TaskRef, group_id, parse_rollout_id, rollout_id
from farm.scheduler.nodes import RunningEpisode

MAX_DEFERRED = 64
"""So many places that fit nowhere are stepped over before a run stops offering new ones."""

PLACEMENT_TRIES = 4
LOOKAHEAD = 32


@dataclass(frozen=True, slots=True)
class Retry:
    """A place to be tried again: not before ``due_at``, and until ``exclude_until`` not on the node ``avoid``."""

    exclude_node: str | None = None
    due_at: float = 0.0
    exclude_until: float = 0.0


class RunProgress:
    """A place is ``ordinal of the group * group size + index``; it is in exactly one of the states below.

    accepted: a rollout of it is in the store. running: an attempt holds a slot. publishing: its failure is being
    written. delayed: a retry whose time has not come. waiting: may start. Otherwise it has not begun, and the cursor
    will reach it.
    """

    def __init__(self, spec: RunSpec, accepted: Mapping[str, Collection[int]], *, paused: bool) -> None:
        self.spec = spec
        self.paused = paused
        self.total = spec.groups * spec.group_size
        self.accepted: set[int] = set()
        self.running: dict[int, RunningEpisode] = {}
        self.publishing: set[int] = set()
        self.waiting: OrderedDict[int, Retry] = OrderedDict()
        self.delayed: dict[int, Retry] = {}
        self.attempts: dict[int, int] = {}
        self.failed: dict[int, set[int]] = {}
        self.retries = 0
        self._cursor = 0
        for group, indices in accepted.items():
            for index in indices:
                place = self.member(rollout_id(group, index))
                if place is not None:
                    self.accepted.add(place)

    def member(self, rollout: str) -> int | None:
        """The place of a rollout id, None where the run has none such."""
        parsed = parse_rollout_id(rollout)
        if parsed is None:
            return None
        run_id, ordinal, index = parsed
        if run_id != self.spec.run_id or index >= self.spec.group_size or ordinal >= self.spec.groups:
            return None
        return ordinal * self.spec.group_size + index

    def task(self, place: int) -> TaskRef:
        return self.spec.tasks[place // self.spec.group_size % len(self.spec.tasks)]

    @property
    def complete(self) -> bool:
        return len(self.accepted) == self.total

    @property
    def capped(self) -> bool:
        return self.spec.concurrency is not None and len(self.running) >= self.spec.concurrency

    @property
    def has_work(self) -> bool:
        return bool(self.waiting) or self._next_fresh() is not None

    @property
    def startable(self) -> bool:
        return not self.paused and not self.capped and self.has_work

    def candidates(self) -> Iterator[tuple[int, Retry]]:
        """A few places to try, so that no misfit blocks a run: the longest waiting, then some not begun.

        Whoever asks for the next one has put the last one aside.
        """
        if self.waiting:
            yield next(iter(self.waiting.items()))
        for _ in range(PLACEMENT_TRIES):
            if len(self.waiting) < MAX_DEFERRED and (fresh := self._next_fresh()) is not None:
                yield fresh, Retry()

    def upcoming(self) -> Iterator[TaskRef]:
        """The tasks of some places that are to be tried next, in this order."""
        for place in islice(self.waiting, LOOKAHEAD):
            yield self.task(place)
        for place in range(self._cursor, min(self._cursor + LOOKAHEAD, self.total)):
            if self.is_open(place) and place not in self.waiting and place not in self.delayed:
                yield self.task(place)

    def defer(self, place: int, waiting: Retry) -> None:
        self.waiting[place] = waiting
        self.waiting.move_to_end(place)

    def start_attempt(self, place: int) -> int:
        """The place is about to run; the number of its attempt."""
        self.waiting.pop(place, None)
        self.attempts[place] = self.attempts.get(place, 0) + 1
        return self.attempts[place]

    def adopt(self, place: int, episode: RunningEpisode) -> None:
        """An attempt that already runs, found on a node after a restart or a broken connection.

        Given up for lost it was counted as failed, and is no more; earlier ones that nobody here has heard of count.
        """
        self.waiting.pop(place, None)
        self.delayed.pop(place, None)
        failed = self.failed.setdefault(place, set())
        failed.discard(episode.attempt)
        failed.update(range(self.attempts.get(place, 0) + 1, episode.attempt))
        self.attempts[place] = max(episode.attempt, self.attempts.get(place, 0))
        self.running[place] = episode

    def is_open(self, place: int) -> bool:
        return place not in self.accepted and place not in self.running and place not in self.publishing

    def accept(self, place: int) -> bool:
        """A rollout of the place is in the store; False: that was known."""
        if place in self.accepted:
            return False
        self.accepted.add(place)
        self.attempts.pop(place, None)
        self.failed.pop(place, None)
        self.waiting.pop(place, None)
        self.delayed.pop(place, None)
        self.publishing.discard(place)
        return True

    def fail(self, place: int, attempt: int) -> int:
        """An attempt has failed; so many of the place have by now."""
        failed = self.failed.setdefault(place, set())
        failed.add(attempt)
        return len(failed)

    def assignment(self, place: int, attempt: int) -> EpisodeAssignment:
        spec = self.spec
        ordinal, index = divmod(place, spec.group_size)
        group = group_id(spec.run_id, ordinal)
        return EpisodeAssignment(
            rollout_id=rollout_id(group, index),
            attempt=attempt,
            final=len(self.failed.get(place, set()) | {attempt}) >= spec.max_attempts,
            run_id=spec.run_id,
            group_id=group,
            group_index=index,
            group_size=spec.group_size,
            task=self.task(place),
            split=spec.split,
            policy=spec.policy,
            limits=spec.limits,
            seed=spec.seed + place,
            tools=spec.tools,
            rewards=spec.rewards,
        )

    def _next_fresh(self) -> int | None:
        while self._cursor < self.total:
            place = self._cursor
            if self.is_open(place) and place not in self.waiting and place not in self.delayed:
                return place
            self._cursor += 1
        return None

    def validate(self) -> None:
        states = [self.accepted, self.running.keys(), self.publishing, self.waiting.keys(), self.delayed.keys()]
        named = sum(len(state) for state in states)
        assert named == len(set().union(*states)), f"{self.spec.run_id}: a place is in two states"
        assert all(0 <= place < self.total for state in states for place in state)
        begun = sum(1 for place in set().union(*states) if place < self._cursor)
        assert begun == self._cursor, f"{self.spec.run_id}: {self._cursor - begun} places were forgotten"
        for place, failed in self.failed.items():
            assert all(0 < attempt <= self.attempts[place] for attempt in failed), f"{failed} of {self.attempts}"
        for place, episode in self.running.items():
            assert episode.member == place, f"{episode} runs at the place {place}"
            assert episode.attempt == self.attempts[place], f"{episode} is not the attempt {self.attempts[place]}"

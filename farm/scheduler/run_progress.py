"""Progress of one run: the state of each of its members."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from farm.core.run import EpisodeAssignment, RunSpec, TaskRef, group_id, parse_rollout_id, rollout_id
from farm.scheduler.nodes import RunningEpisode

MAX_DEFERRED = 64
"""The number of members that fit on no node before the run stops offering new members."""

PLACEMENT_TRIES = 4
LOOKAHEAD = 32


@dataclass(frozen=True, slots=True)
class Retry:
    """A member to try again: not before ``due_at``, and not on ``exclude_node`` until ``exclude_until``."""

    exclude_node: str | None = None
    due_at: float = 0.0
    exclude_until: float = 0.0


class RunProgress:
    """The members of a run and their states.

    A member is the number ``group ordinal * group size + index``. It is in exactly one state:

    - accepted: the store holds its rollout.
    - running: an attempt holds a slot.
    - publishing: its failure is being written.
    - delayed: its retry is not due yet.
    - waiting: it may start.
    - new: the cursor has not reached it.
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
                member = self.member(rollout_id(group, index))
                if member is not None:
                    self.accepted.add(member)

    def member(self, rollout: str) -> int | None:
        """Return the member of a rollout id, or None if the rollout belongs to another run."""
        parsed = parse_rollout_id(rollout)
        if parsed is None:
            return None
        run_id, ordinal, index = parsed
        if run_id != self.spec.run_id or index >= self.spec.group_size or ordinal >= self.spec.groups:
            return None
        return ordinal * self.spec.group_size + index

    def task(self, member: int) -> TaskRef:
        return self.spec.tasks[member // self.spec.group_size % len(self.spec.tasks)]

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
        """Yield a few members to member: the longest waiting one, then some new ones, so that one misfit does not block
        the run.

        Before it asks for the next member, the caller defers the last one.
        """
        if self.waiting:
            yield next(iter(self.waiting.items()))
        for _ in range(PLACEMENT_TRIES):
            if len(self.waiting) < MAX_DEFERRED and (fresh := self._next_fresh()) is not None:
                yield fresh, Retry()

    def upcoming(self) -> Iterator[TaskRef]:
        """Yield the tasks of the members that are placed next, in order."""
        for member in islice(self.waiting, LOOKAHEAD):
            yield self.task(member)
        for member in range(self._cursor, min(self._cursor + LOOKAHEAD, self.total)):
            if self.is_open(member) and member not in self.waiting and member not in self.delayed:
                yield self.task(member)

    def defer(self, member: int, retry: Retry) -> None:
        self.waiting[member] = retry
        self.waiting.move_to_end(member)

    def start_attempt(self, member: int) -> int:
        """Count a new attempt of the member, and return its number."""
        self.waiting.pop(member, None)
        self.attempts[member] = self.attempts.get(member, 0) + 1
        return self.attempts[member]

    def adopt(self, member: int, episode: RunningEpisode) -> None:
        """Take over an attempt that a node already runs, after a restart or a broken connection.

        If the attempt was counted as failed, it counts as running again. Earlier attempts that this scheduler does not
        know count as failed.
        """
        self.waiting.pop(member, None)
        self.delayed.pop(member, None)
        failed = self.failed.setdefault(member, set())
        failed.discard(episode.attempt)
        failed.update(range(self.attempts.get(member, 0) + 1, episode.attempt))
        self.attempts[member] = max(episode.attempt, self.attempts.get(member, 0))
        self.running[member] = episode

    def is_open(self, member: int) -> bool:
        return member not in self.accepted and member not in self.running and member not in self.publishing

    def accept(self, member: int) -> bool:
        """Record that the store holds the member's rollout. Return False if that was known."""
        if member in self.accepted:
            return False
        self.accepted.add(member)
        self.attempts.pop(member, None)
        self.failed.pop(member, None)
        self.waiting.pop(member, None)
        self.delayed.pop(member, None)
        self.publishing.discard(member)
        return True

    def fail(self, member: int, attempt: int) -> int:
        """Record a failed attempt. Return the number of failed attempts of the member."""
        failed = self.failed.setdefault(member, set())
        failed.add(attempt)
        return len(failed)

    def assignment(self, member: int, attempt: int) -> EpisodeAssignment:
        spec = self.spec
        ordinal, index = divmod(member, spec.group_size)
        group = group_id(spec.run_id, ordinal)
        return EpisodeAssignment(
            rollout_id=rollout_id(group, index),
            attempt=attempt,
            final=len(self.failed.get(member, set()) | {attempt}) >= spec.max_attempts,
            run_id=spec.run_id,
            group_id=group,
            group_index=index,
            group_size=spec.group_size,
            task=self.task(member),
            split=spec.split,
            policy=spec.policy,
            limits=spec.limits,
            seed=spec.seed + member,
            tools=spec.tools,
            rewards=spec.rewards,
            harness=spec.harness,
            agent=spec.agent,
        )

    def _next_fresh(self) -> int | None:
        while self._cursor < self.total:
            member = self._cursor
            if self.is_open(member) and member not in self.waiting and member not in self.delayed:
                return member
            self._cursor += 1
        return None

    def validate(self) -> None:
        states = [self.accepted, self.running.keys(), self.publishing, self.waiting.keys(), self.delayed.keys()]
        named = sum(len(state) for state in states)
        assert named == len(set().union(*states)), f"{self.spec.run_id}: a member is in two states"
        assert all(0 <= member < self.total for state in states for member in state)
        reached = sum(1 for member in set().union(*states) if member < self._cursor)
        assert reached == self._cursor, f"{self.spec.run_id}: {self._cursor - reached} members were forgotten"
        for member, failed in self.failed.items():
            assert all(0 < attempt <= self.attempts[member] for attempt in failed), f"{failed} of {self.attempts}"
        for member, episode in self.running.items():
            assert episode.member == member, f"{episode} runs as the member {member}"
            assert episode.attempt == self.attempts[member], f"{episode} is not the attempt {self.attempts[member]}"

"""Groups for each training step, leased before it and acked after it.

with LeaseLoop(farm, "trainer-0", run_id=run, groups=8) as loop:
    for batch in loop:
        with batch:
            train(batch.samples)
"""

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self

from farm.client import FarmClient, Group
from farm.learners.lease_keeper import LeaseKeeper
from farm.learners.leasing import Leasing
from farm.learners.samples import Advantages, GroupSamples, Sample, group_samples, normalised

Taken = dict[str, tuple[GroupSamples, ...]]
"""Groups by the id of their lease."""


class RunFailed(Exception):
    """Raised if the run failed, or, without a run, if a run did and no other has groups."""


class BatchStillOpen(Exception):
    """Raised if the next batch is requested before the last one was acked or nacked."""


class Batch:
    """Leased groups of one step. As a context manager, it acks them at the end, or nacks them if the step raises."""

    def __init__(self, groups: tuple[GroupSamples, ...], settle: Callable[[bool], None]) -> None:
        self.groups = groups
        self._settle = settle
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Return the samples of all groups."""
        return tuple(sample for group in self.groups for sample in group.samples)

    def ack(self) -> None:
        """Acknowledge the groups: the step that trained them is done."""
        self._end(trained=True)

    def nack(self) -> None:
        """Give the groups back: they are delivered again."""
        self._end(trained=False)

    @property
    def is_open(self) -> bool:
        return self._open

    def _end(self, *, trained: bool) -> None:
        if self._open:
            self._open = False
            self._settle(trained)


class LeaseLoop:
    """Yields batches of ``groups`` groups with samples until the run is drained. The last batch may be smaller.

    A group without any sample is acked with the batch and does not count. ``policy_version`` returns the learner's
    version when a lease begins; with ``max_staleness`` it drops groups that are too old. The leases are extended for as
    long as a batch is open, so a step may take any time.

    If a lease is lost before its ack, the farm delivers its groups again. The loop remembers their rollouts and leaves
    them out, so no rollout is trained twice.
    """

    def __init__(
        self,
        farm: FarmClient,
        leasing: Leasing,
        *,
        groups: int = 1,
        policy_version: Callable[[], int | None] = lambda: None,
        advantages: Advantages = normalised,
    ) -> None:
        if groups < 1:
            raise ValueError(f"groups is {groups}; a step needs at least 1 group")
        self._farm = farm
        self._leasing = leasing
        self._groups = groups
        self._policy_version = policy_version
        self._advantages = advantages
        self._keeper = LeaseKeeper(farm, leasing.lease_s)
        self._batch: Batch | None = None
        self._trained_unacked: set[str] = set()

    def __enter__(self) -> Self:
        self._keeper.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nack what is still open."""
        self._keeper.__exit__(kind, error, trace)

    @property
    def lease_ids(self) -> tuple[str, ...]:
        """Return the leases of the open batch."""
        return self._keeper.lease_ids

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, groups: int | None = None) -> Batch | None:
        """Lease the groups of the next step, or another number of them. Return None if the run is drained.

        Raises RunFailed, BatchStillOpen and FarmError.
        """
        wanted = self._groups if groups is None else groups
        if self._batch is not None and self._batch.is_open:
            raise BatchStillOpen("the last batch is neither acked nor nacked; use `with batch:` around the step")
        taken: Taken = {}
        try:
            self._lease_groups(taken, wanted)
        except BaseException:
            self._settle(taken, trained=False)
            raise
        useful = tuple(group for leased in taken.values() for group in leased if group.samples)
        if not useful:
            self._settle(taken, trained=True)
            return None
        self._batch = Batch(useful, lambda trained: self._settle(taken, trained))
        return self._batch

    def _lease_groups(self, taken: Taken, wanted: int) -> None:
        """Add leases until they have enough groups with samples, or until the run has no more.

        A run that has ended is not drained before these leases are acked, so they must not wait for it.
        """
        while (missing := wanted - sum(bool(group.samples) for leased in taken.values() for group in leased)) > 0:
            partial = bool(taken) and have_ended(self._farm, _runs(taken))
            lease = self._leasing.lease(self._farm, missing, self._policy_version(), wait=not partial)
            if lease is None and partial:
                return
            if lease is None:
                continue
            if not lease.groups:
                if lease.stream == "failed":
                    raise RunFailed(f"run {self._leasing.run} failed; `farm runs show` says why")
                return
            self._keeper.hold(lease)
            taken[lease.lease_id] = tuple(self._samples(group) for group in lease.groups)

    def _samples(self, group: Group) -> GroupSamples:
        made = group_samples(group, self._advantages)
        if not self._trained_unacked.intersection(rollout.rollout_id for rollout in group.rollouts):
            return made
        return GroupSamples(group, (), made.rewards, {"trained_before": len(group.rollouts)})

    def _settle(self, taken: Taken, trained: bool) -> None:
        for lease_id, groups in taken.items():
            if not trained:
                self._keeper.nack(lease_id)
                continue
            ids = {rollout.rollout_id for group in groups for rollout in group.group.rollouts}
            self._trained_unacked |= ids
            if self._keeper.ack(lease_id):
                self._trained_unacked -= ids


def have_ended(farm: FarmClient, run_ids: Iterable[str]) -> bool:
    """Return whether no more groups will be made for any of these runs."""
    return all(farm.run(run_id).ended_at is not None for run_id in run_ids)


def _runs(taken: Taken) -> set[str]:
    return {group.group.rollouts[0].run_id for groups in taken.values() for group in groups}

"""What can go wrong with the store, by what the caller can do about it.

StoreError
├── StoreUnavailable   Redis does not answer or refuses; the message names the address and the remedy
├── StoreFault         Redis refuses this very call, and would each time: a defect, or another's keys in the way
├── UnknownRun         no run of this id
├── RunEnded           the run has ended: it accepts no more rollouts
├── RunExists          another run has this id
├── RunInUse           the run has not ended, or a lease holds groups of it: it cannot be deleted
├── UnknownLease       no lease of this id, or one that ended more than a day ago
├── LeaseLost          the lease ran out, was given back or was acked
├── GroupMismatch      a rollout names a group size that disagrees with its group's
├── RulesChanged       a rollout was judged by other rules than its group is: judge it again
├── UnknownRules       no rule document of this version
├── RolloutTooLarge    a rollout is more than can be stored and read back
└── BadCursor          a page cursor that this store did not make
"""

RUNS_LISTED = "`farm runs list` and GET /v1/runs list all"


class StoreError(Exception):
    """Root of the tree."""


class StoreUnavailable(StoreError):
    pass


class StoreFault(StoreError):
    pass


class UnknownRun(StoreError):
    pass


class RunEnded(StoreError):
    pass


class RunExists(StoreError):
    pass


class RunInUse(StoreError):
    pass


class UnknownLease(StoreError):
    pass


class LeaseLost(StoreError):
    pass


class GroupMismatch(StoreError):
    pass


class RulesChanged(StoreError):
    pass


class UnknownRules(StoreError):
    pass


class RolloutTooLarge(StoreError):
    pass


class BadCursor(StoreError):
    pass

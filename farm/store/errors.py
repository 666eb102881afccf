"""Errors of the store.

StoreError
├── StoreUnavailable   Redis does not answer or refuses; the message names the address and the remedy
├── StoreFault         Redis refuses this call, and would refuse it again: a bug, or foreign keys in the way
├── UnknownRun         there is no run of this id
├── RunEnded           the run has ended and accepts no more rollouts
├── RunExists          another run has this id
├── RunInUse           the run has not ended, or a lease holds its groups: it cannot be deleted
├── RunNotLeased       the run evaluates: its groups are never leased
├── EvaluationExists    another evaluation has this id
├── UnknownEvaluation   there is no evaluation of this id
├── TooManyEvaluations  the farm keeps no more evaluations
├── UnknownGroup        there is no requested group of this id
├── TooManyGroups       the farm keeps no more requested groups
├── UnknownLease       there is no lease of this id, or it ended more than a day ago
├── LeaseNotHeld       the lease expired, was given back, was acked, or its learner was restored
├── UnknownLearner      the run has no learner of this name
├── WrongHistory        a call of a life of a learner that ended with a restore
├── CheckpointRefused   a checkpoint is out of order, or includes acks that are not there
├── UnknownCheckpoint   a restore names another step than that of the last checkpoint
├── CheckpointNeeded    a learner has as many provisional acks as it may have
├── TooManyLearners     the run keeps no more learners
├── GroupMismatch      a rollout's group size differs from that of its group
├── RulesChanged       a rollout was scored by other rules than its group: score it again
├── UnknownPolicy      there is no policy of this name
├── TooManyPolicies    the farm keeps no more policies
├── UnknownRules       there is no rule document of this version
├── RolloutTooLarge    a rollout is too large to be stored and read back
└── BadCursor          the page cursor is not from this store
"""

RUNS_LISTED = "`farm runs list` and GET /v1/runs list all"


class StoreError(Exception):
    """The root of the errors of the store."""


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


class RunNotLeased(StoreError):
    pass


class EvaluationExists(StoreError):
    pass


class UnknownEvaluation(StoreError):
    pass


class TooManyEvaluations(StoreError):
    pass


class UnknownGroup(StoreError):
    pass


class TooManyGroups(StoreError):
    pass


class UnknownLease(StoreError):
    pass


class LeaseNotHeld(StoreError):
    pass


class UnknownLearner(StoreError):
    pass


class WrongHistory(StoreError):
    pass


class CheckpointRefused(StoreError):
    pass


class UnknownCheckpoint(StoreError):
    pass


class CheckpointNeeded(StoreError):
    pass


class TooManyLearners(StoreError):
    pass


class GroupMismatch(StoreError):
    pass


class RulesChanged(StoreError):
    pass


class UnknownPolicy(StoreError):
    pass


class TooManyPolicies(StoreError):
    pass


class UnknownRules(StoreError):
    pass


class RolloutTooLarge(StoreError):
    pass


class BadCursor(StoreError):
    pass

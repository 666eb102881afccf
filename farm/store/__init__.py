"""The farm's durable data in Redis: bundles, runs, rollouts, groups, leases, policies and rules.

This room decides what is stored, and which steps are atomic. Enter at ``Store``. The atomic steps are in
``lua/store.lua``, whose head lists all keys. The page is farm/docs/architecture/store.md.
"""

from farm.store.delivery.checkpoints import CheckpointResult, LearnerLife, LearnerRecord, RestoreResult
from farm.store.delivery.leases import LeaseFilter
from farm.store.delivery.pacing import GroupNews, PacingStore, RunFigures
from farm.store.delivery.requested_groups import RequestedGroup
from farm.store.embedded_redis import EmbeddedRedis
from farm.store.errors import (
    BadCursor,
    CheckpointNeeded,
    CheckpointRefused,
    GroupMismatch,
    LeaseNotHeld,
    RolloutTooLarge,
    RulesChanged,
    RunEnded,
    RunExists,
    RunInUse,
    StoreError,
    StoreFault,
    StoreUnavailable,
    TooManyGroups,
    TooManyLearners,
    TooManyPolicies,
    UnknownCheckpoint,
    UnknownGroup,
    UnknownLearner,
    UnknownLease,
    UnknownPolicy,
    UnknownRules,
    UnknownRun,
    WrongHistory,
)
from farm.store.node_list import NodeListStore
from farm.store.outside_redis import examine_redis
from farm.store.policies import PolicyStore
from farm.store.reading.figures import By, Figures, KeyedTally, Tally, curve, tallies, tally
from farm.store.reading.heads import RolloutFilter, run_of_group
from farm.store.rescoring import RescoreResult
from farm.store.retention import DueGroup, DueRest, RetentionStore, StoredFrames
from farm.store.reward_rules import StoredRules
from farm.store.sandbox_records import SandboxRecord
from farm.store.store import Store
from farm.store.types import FinishedLease, LeasedGroup, RolloutPage, RunRecord, RunState, StoredLease, StreamState

__all__ = [
    "BadCursor",
    "By",
    "CheckpointNeeded",
    "CheckpointRefused",
    "CheckpointResult",
    "DueGroup",
    "DueRest",
    "EmbeddedRedis",
    "Figures",
    "FinishedLease",
    "GroupMismatch",
    "GroupNews",
    "KeyedTally",
    "LearnerLife",
    "LearnerRecord",
    "LeaseFilter",
    "LeaseNotHeld",
    "LeasedGroup",
    "NodeListStore",
    "PacingStore",
    "PolicyStore",
    "RequestedGroup",
    "RescoreResult",
    "RestoreResult",
    "RetentionStore",
    "RolloutFilter",
    "RolloutPage",
    "RolloutTooLarge",
    "RulesChanged",
    "RunEnded",
    "RunExists",
    "RunFigures",
    "RunInUse",
    "RunRecord",
    "RunState",
    "SandboxRecord",
    "Store",
    "StoreError",
    "StoreFault",
    "StoreUnavailable",
    "StoredFrames",
    "StoredLease",
    "StoredRules",
    "StreamState",
    "Tally",
    "TooManyGroups",
    "TooManyLearners",
    "TooManyPolicies",
    "UnknownCheckpoint",
    "UnknownGroup",
    "UnknownLearner",
    "UnknownLease",
    "UnknownPolicy",
    "UnknownRules",
    "UnknownRun",
    "WrongHistory",
    "curve",
    "examine_redis",
    "run_of_group",
    "tallies",
    "tally",
]

"""Redis: bundles, runs, rollouts, groups, leases. Atomic steps are in ``lua/store.lua``, headed by the key schema.

farm/docs/architecture/store.md explains it.
"""

from farm.store.embedded_redis import EmbeddedRedis
from farm.store.errors import (
    BadCursor,
    GroupMismatch,
    LeaseLost,
    RolloutTooLarge,
    RulesChanged,
    RunEnded,
    RunExists,
    RunInUse,
    StoreError,
    StoreFault,
    StoreUnavailable,
    UnknownLease,
    UnknownRules,
    UnknownRun,
)
from farm.store.leases import LeaseFilter
from farm.store.node_list import FleetBook
from farm.store.outside_redis import examine_redis
from farm.store.rescoring import Rescored
from farm.store.reward_rules import StoredRules
from farm.store.store import Store
from farm.store.types import Lease, LeasedGroup, RolloutPage, RunRecord, RunState, StreamState

__all__ = [
    "BadCursor",
    "EmbeddedRedis",
    "FleetBook",
    "GroupMismatch",
    "Lease",
    "LeaseFilter",
    "LeaseLost",
    "LeasedGroup",
    "Rescored",
    "RolloutPage",
    "RolloutTooLarge",
    "RulesChanged",
    "RunEnded",
    "RunExists",
    "RunInUse",
    "RunRecord",
    "RunState",
    "Store",
    "StoreError",
    "StoreFault",
    "StoreUnavailable",
    "StoredRules",
    "StreamState",
    "UnknownLease",
    "UnknownRules",
    "UnknownRun",
    "examine_redis",
]

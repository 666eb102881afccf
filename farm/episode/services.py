"""The services of a node for its episodes."""

import asyncio
from dataclasses import dataclass, field

from farm.episode.baselines import Baselines
from farm.grading import VerifierCheck
from farm.rewards import Plugins
from sandboxes.interface import Runtime
from sandboxes.search.index_store import IndexStore


@dataclass(frozen=True, slots=True)
class NodeServices:
    """All of it belongs to the node and outlives an episode.

    ``node_id`` is written into rollouts. ``runtime``: where sandboxes boot.
    ``baselines`` spare a walk of each image that was walked before; ``verifier_check`` remembers which verifiers work.
    ``test_slots`` bounds how many test commands run at once (None: no bound).
    ``index_store``: without it there is no code search by meaning.
    ``plugins`` add raw components to the rewards of judged episodes.
    ``tracebacks``: as ``GradingRequest`` has it.
    """

    node_id: str
    runtime: Runtime
    baselines: Baselines = field(default_factory=Baselines)
    verifier_check: VerifierCheck = field(default_factory=VerifierCheck)
    test_slots: asyncio.Semaphore | None = None
    index_store: IndexStore | None = None
    plugins: Plugins | None = None
    tracebacks: bool = False

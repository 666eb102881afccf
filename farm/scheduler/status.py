"""The current status of the farm, for people and for the gateway."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The status of one node.

    ``state`` is ``open`` (takes episodes), ``full``, ``draining``, ``pressed``, ``unwell`` or ``lost``; ``why``
    explains it. ``running`` counts episodes, ``sandboxes`` those of learners; each holds a slot. ``seen_s``: seconds
    since the last heartbeat. The loads are fractions; that of the cores may exceed 1. ``lost_at``: the Unix time at
    which the node was found lost. A lost node has no slots and is listed until it returns, for 24 h at most.
    """

    node_id: str
    state: str
    why: str
    slots: int
    running: int
    seen_s: float
    cpu_load: float
    memory_load: float
    disk_load: float
    lost_at: float | None = None
    sandboxes: int = 0


@dataclass(frozen=True, slots=True)
class SandboxPlacement:
    """The node that holds a slot for a learner sandbox; empty if there is none, and ``why`` says why."""

    node_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of one run.

    ``why_waiting``: why no more episodes start, or "" if none waits. ``outage``: why a running episode waits for its
    policy's endpoint, or "" if none does.
    """

    run_id: str
    running: int
    waiting: int
    retries: int
    why_waiting: str
    outage: str = ""


@dataclass(frozen=True, slots=True)
class FarmStatus:
    nodes: tuple[NodeStatus, ...]
    runs: tuple[RunStatus, ...]

    @property
    def present(self) -> tuple[NodeStatus, ...]:
        """The nodes that are not lost."""
        return tuple(node for node in self.nodes if node.lost_at is None)

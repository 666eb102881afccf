"""What the farm is doing just now, as the scheduler sees it: for people and for the gateway."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """``state``: ``open`` (takes episodes), ``full``, ``draining``, ``pressed``, ``unwell`` or ``lost``; ``why``
    explains it.

    ``seen_s`` seconds have passed since the node's last beat. The loads are fractions, that of the cores may exceed 1.
    ``lost_at``: the Unix time at which a lost node was found to be lost. It has no slots, and is listed until it comes
    back, for 24 h at most.
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


@dataclass(frozen=True, slots=True)
class RunStatus:
    """``why_waiting``: why nothing more starts, empty where nothing of the run waits. ``outage``: why an episode that
    runs waits for its policy's endpoint, empty where none does."""

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

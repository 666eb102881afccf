"""The current status of the farm, for people and for the gateway."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from farm.core.policy_document import EndpointFigures


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
class EndpointStatus:
    """The status of one endpoint of a policy.

    ``calls`` and ``failures`` count the requests of the last half minute over all nodes. ``ejected``: the number of
    nodes that send it none now. ``why``: the last failure.
    """

    url: str
    calls: int = 0
    failures: int = 0
    ejected: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """The status of a policy. ``source`` is its name, or its endpoint if runs name that.

    ``outage``: why only probes of its runs start, or "" if episodes start.
    """

    source: str
    endpoints: tuple[EndpointStatus, ...] = ()
    outage: str = ""


@dataclass(frozen=True, slots=True)
class FarmStatus:
    nodes: tuple[NodeStatus, ...]
    runs: tuple[RunStatus, ...]
    policies: tuple[PolicyStatus, ...] = ()

    @property
    def present(self) -> tuple[NodeStatus, ...]:
        """The nodes that are not lost."""
        return tuple(node for node in self.nodes if node.lost_at is None)


def endpoint_statuses(figures: Sequence[EndpointFigures]) -> tuple[EndpointStatus, ...]:
    """Return the status of each endpoint, from its figures on all nodes."""
    by_url: defaultdict[str, list[EndpointFigures]] = defaultdict(list)
    for one in figures:
        by_url[one.url].append(one)
    return tuple(
        EndpointStatus(
            url,
            calls=sum(one.calls for one in ones),
            failures=sum(one.failures for one in ones),
            ejected=sum(one.ejected for one in ones),
            why=next((one.why for one in ones if one.failures or one.ejected), ""),
        )
        for url, ones in by_url.items()
    )

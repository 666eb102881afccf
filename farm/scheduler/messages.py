"""What the scheduler is told, and what it orders: plain values, no behaviour."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from farm.core.rollout import Failure
from farm.core.run import EpisodeAssignment, EpisodeReport, RunSpec, TaskRef


@dataclass(frozen=True, slots=True)
class Load:
    """How hard a node is pressed: runnable threads per core; used fractions of its memory and of its disk."""

    cpu: float = 0.0
    memory: float = 0.0
    disk: float = 0.0


@dataclass(frozen=True, slots=True)
class PressureStall:
    """The fraction of the last ten seconds in which some tasks of a machine, or all of them, stood still for want of
    processors, of memory, or of its disks. Processors are never wanted by all. Nothing, where the kernel does not tell.
    """

    cpu_some: float = 0.0
    memory_some: float = 0.0
    memory_full: float = 0.0
    io_some: float = 0.0
    io_full: float = 0.0


@dataclass(frozen=True, slots=True)
class RunSubmitted:
    """``accepted``: group id → indices that already have a rollout, so that a restart resumes."""

    spec: RunSpec
    accepted: Mapping[str, Collection[int]] = field(default_factory=dict)
    paused: bool = False


@dataclass(frozen=True, slots=True)
class RunPaused:
    run_id: str


@dataclass(frozen=True, slots=True)
class RunResumed:
    run_id: str


@dataclass(frozen=True, slots=True)
class RunCancelled:
    run_id: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node lives and says what it has. The first one joins it.

    ``incarnation`` names one life of its agent; when it changes, what the earlier life ran goes on where ``running``
    lists it, and is dead otherwise. ``join`` names the ``farm up`` that the agent belongs to; a process of the agent
    that is started again has the same one. A drained node stays drained until ``join`` changes.
    ``running``: rollout id → attempt, listed until the scheduler has taken the episode's report. ``images`` None: as
    last time.
    ``outages``: run id → why an episode of it waits for its policy's endpoint, of those where one does.
    ``lacks``: what its sandboxes go without.
    What is free of the disks of its state directory and of its images is in MiB, None where that is not to be seen.
    Beats and reports of one node must arrive in the order in which they were sent.
    """

    node_id: str
    incarnation: str
    slots: int
    cpus: float
    memory_mib: int
    memory_available_mib: int
    load: Load
    running: Mapping[str, int]
    images: frozenset[str] | None = None
    draining: bool = False
    outages: Mapping[str, str] = field(default_factory=dict)
    pressure: PressureStall = field(default_factory=PressureStall)
    disk_free_mib: int | None = None
    image_disk_free_mib: int | None = None
    degraded: tuple[str, ...] = ()
    join: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost:
    """Somebody knows that the node is dead, before its missing beats say so."""

    node_id: str


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The node has said good-bye: what it still ran was stopped on purpose, which is nobody's failure."""

    node_id: str


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """An operator wants a node to take no more episodes, or, without ``drain``, to take some again."""

    node_id: str
    drain: bool = True


@dataclass(frozen=True, slots=True)
class EpisodeEnded:
    """``node_id`` is empty where the scheduler's shell itself published a failure."""

    node_id: str
    report: EpisodeReport


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = (
    RunSubmitted
    | RunPaused
    | RunResumed
    | RunCancelled
    | Heartbeat
    | NodeLost
    | NodeLeft
    | NodeDrained
    | EpisodeEnded
    | Tick
)


@dataclass(frozen=True, slots=True)
class StartEpisode:
    node_id: str
    assignment: EpisodeAssignment


@dataclass(frozen=True, slots=True)
class StopEpisode:
    node_id: str
    rollout_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PrewarmSandboxes:
    """So many sandboxes of each task the node is likely to need next: a hint, which takes the place of the last one."""

    node_id: str
    sandboxes: tuple[tuple[TaskRef, int], ...]


@dataclass(frozen=True, slots=True)
class DrainNode:
    """Take no more episodes; without ``drain``, take some again. A node keeps to it if the scheduler restarts."""

    node_id: str
    drain: bool


@dataclass(frozen=True, slots=True)
class PublishFailure:
    """The attempts are used up and no node is left to say so: publish ``order`` as failed, its reward null."""

    assignment: EpisodeAssignment
    failure: Failure


@dataclass(frozen=True, slots=True)
class RunFinished:
    run_id: str


Command = StartEpisode | StopEpisode | PrewarmSandboxes | DrainNode | PublishFailure | RunFinished

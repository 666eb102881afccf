"""The scheduler's view of the nodes, and the choice of a node for an episode."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from farm.core.policy_document import EndpointFigures
from farm.core.run import TaskRef
from farm.scheduler.admission import Admission, judge
from farm.scheduler.messages import Heartbeat, Load
from farm.scheduler.settings import SchedulerSettings

CANDIDATES = 8
"""The number of open nodes that one placement compares. It keeps the cost constant; the balance is close to the best.
"""


@dataclass(slots=True)
class RunningEpisode:
    """An attempt that holds a slot.

    ``member`` is None for an attempt that only has to stop. ``confirmed``: a heartbeat has listed it. ``adopted``: it
    was found on its node, and this life of the scheduler and of the agent has not assigned it.
    """

    rollout_id: str
    attempt: int
    run_id: str
    member: int | None
    node_id: str
    memory_mib: int
    ordered_at: float
    confirmed: bool = False
    adopted: bool = False
    stopping: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.rollout_id, self.attempt


@dataclass(slots=True)
class PlacedSandbox:
    """A learner sandbox that holds a slot. ``confirmed``: a heartbeat has listed it."""

    sandbox_id: str
    memory_mib: int
    placed_at: float
    confirmed: bool = False


@dataclass(slots=True)
class Node:
    """The scheduler's record of one node.

    ``stale_images``: images whose rotation dropped this node while it was closed. ``held_mib``: the sum of the memory
    limits of the node's episodes and learner sandboxes. ``unconfirmed_mib``: the part of it that was assigned since the
    last heartbeat, which the node's available memory does not reflect yet. ``expects``: the images that it was last
    told to prewarm. ``drain``: an operator's wish, until a heartbeat confirms it.
    """

    id: str
    incarnation: str
    beat_at: float
    join: str = ""
    slots: int = 0
    cpus: float = 0.0
    memory_mib: int = 0
    available_mib: int = 0
    load: Load = field(default_factory=Load)
    admission: Admission = field(default_factory=Admission)
    draining: bool = False
    drain: bool | None = None
    outages: Mapping[str, str] = field(default_factory=dict)
    endpoints: Mapping[str, tuple[EndpointFigures, ...]] = field(default_factory=dict)
    degraded: tuple[str, ...] = ()
    images: set[str] = field(default_factory=set)
    expects: tuple[tuple[TaskRef, int], ...] | None = None
    stale_images: set[str] = field(default_factory=set)
    held: dict[tuple[str, int], RunningEpisode] = field(default_factory=dict)
    sandboxes: dict[str, PlacedSandbox] = field(default_factory=dict)
    held_mib: int = 0
    unconfirmed_mib: int = 0
    failures: int = 0
    quarantined_until: float = 0.0

    @property
    def taken(self) -> int:
        """The number of slots that episodes and learner sandboxes hold."""
        return len(self.held) + len(self.sandboxes)

    @property
    def share(self) -> float:
        return self.taken / self.slots

    def room_mib(self, overcommit: float) -> int:
        """Return the highest memory limit that one more episode may have.

        An episode counts with 1/``overcommit`` of its limit until the node's figures show its real use.
        """
        by_limits = overcommit * self.memory_mib - self.held_mib
        by_use = overcommit * self.available_mib - self.unconfirmed_mib
        return int(min(self.memory_mib, by_limits, by_use))

    def fits(self, task: TaskRef, overcommit: float) -> bool:
        return task.memory_mib <= self.room_mib(overcommit) and task.cpus <= self.cpus

    def availability(self, now: float, settings: SchedulerSettings) -> tuple[str, str]:
        """Return a state and its reason: ``open``, ``draining``, ``unwell``, ``pressed`` or ``full``.

        The reason of an open node says why other nodes are preferred, or which protections it lacks.
        """
        if self.draining:
            return "draining", "it is draining"
        if now < self.quarantined_until:
            return "unwell", f"it rests after {self.failures} infrastructure failures in a row"
        if self.admission.closed:
            return "pressed", self.admission.why
        if self.taken >= self.slots:
            return "full", f"its {self.slots} slots are taken"
        return "open", self.admission.why or "; ".join(self.degraded)

    def is_open(self, now: float, settings: SchedulerSettings) -> bool:
        return self.availability(now, settings)[0] == "open"


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node whose heartbeats ended without notice.

    ``held``: the episodes that it ran. ``join`` and ``draining`` are those of its last heartbeat. ``lost_at`` is in the
    future if a restarted scheduler still waits for the node's first heartbeat.
    """

    id: str
    beat_at: float
    lost_at: float
    cause: str
    held: tuple[RunningEpisode, ...] = ()
    join: str = ""
    draining: bool = False


Rotation = OrderedDict[str, None]


class NodeRegistry:
    """The nodes by id, and rotations of those that may be open: one of all nodes, and one of the holders of each image.

    A rotation is cleaned when it is read: a closed node is dropped, and put back once it opens. Each drop is paid for
    by one earlier insertion, so a placement costs the same with ten nodes and with thousands.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self.settings = settings
        self._nodes: OrderedDict[str, Node] = OrderedDict()
        self._lost: dict[str, LostNode] = {}
        self._open: Rotation = OrderedDict()
        self._holders: dict[str, Rotation] = {}
        self.revision = 0
        """Counts the changes of what is to be known of the nodes after a restart of the scheduler."""

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._nodes

    def get(self, node_id: str) -> Node | None:
        return self._nodes.get(node_id)

    def lost(self, now: float) -> tuple[LostNode, ...]:
        """Return the nodes that were lost lately and have not come back, the latest last."""
        lost = (node for node in self._lost.values() if 0 <= now - node.lost_at < self.settings.lost_kept_s)
        return tuple(sorted(lost, key=lambda node: node.lost_at))

    def awaited(self, now: float) -> tuple[LostNode, ...]:
        """Return the restored nodes that have sent no heartbeat yet and are not lost yet."""
        return tuple(node for node in self._lost.values() if node.lost_at > now)

    def restore(self, node: LostNode) -> None:
        """Add a node of an earlier scheduler. It is lost from its ``lost_at`` on, unless it sends a heartbeat."""
        if node.id not in self._nodes:
            self._lost[node.id] = node

    def drained_before(self, beat: Heartbeat) -> bool:
        """Return whether the node was drained after its last ``farm up`` and its new agent does not know of it."""
        known = self._nodes.get(beat.node_id)
        before = known if known is not None else self._lost.get(beat.node_id)
        if before is None or (known is not None and known.incarnation == beat.incarnation):
            return False
        return before.draining and before.join == beat.join and not beat.draining

    def heartbeat(self, beat: Heartbeat, now: float) -> Node:
        """Update a node from its heartbeat. The caller compares the running episodes."""
        self._lost.pop(beat.node_id, None)
        node = self._nodes.get(beat.node_id)
        if node is None:
            node = self._nodes[beat.node_id] = Node(beat.node_id, beat.incarnation, now, beat.join)
            self.revision += 1
        self._nodes.move_to_end(node.id)
        node.beat_at = now
        node.slots, node.cpus = beat.slots, beat.cpus
        self._set_draining(node, beat.draining if node.drain is None else node.drain)
        node.memory_mib, node.available_mib = beat.memory_mib, beat.memory_available_mib
        node.load, node.outages, node.degraded = beat.load, beat.outages, beat.degraded
        node.endpoints = beat.endpoints
        node.admission = judge(node.admission, beat, self.settings.admission, now)
        if beat.images is not None:
            self._set_images(node, beat.images)
        return node

    def expired(self, now: float) -> Iterator[str]:
        """Yield the nodes whose last heartbeat is too old. The caller removes each before it asks for the next."""
        while self._nodes:
            oldest = next(iter(self._nodes.values()))
            if now - oldest.beat_at < self.settings.lost_after_s:
                return
            yield oldest.id

    def remove(self, node_id: str) -> list[RunningEpisode]:
        """Forget a node. Return the episodes that it held."""
        self.revision += self._lost.pop(node_id, None) is not None or node_id in self._nodes
        if node_id not in self._nodes:
            return []
        node = self._nodes.pop(node_id)
        self._open.pop(node_id, None)
        self._set_images(node, frozenset())
        return list(node.held.values())

    def lose(self, node_id: str, cause: str, now: float) -> list[RunningEpisode]:
        """Record a node as lost. Return the episodes that it held."""
        node = self._nodes[node_id]
        held = self.remove(node_id)
        self._lost[node_id] = LostNode(node_id, node.beat_at, now, cause, tuple(held), node.join, node.draining)
        gone = sorted((one for one in self._lost.values() if one.lost_at <= now), key=lambda one: one.lost_at)
        for one in gone[: max(0, len(gone) - self.settings.lost_kept)]:
            del self._lost[one.id]
        return held

    def drain(self, node: Node, drain: bool, now: float) -> None:
        node.drain = drain
        self._set_draining(node, drain)
        self.refresh(node, now)

    def _set_draining(self, node: Node, draining: bool) -> None:
        self.revision += node.draining != draining
        node.draining = draining

    def hold(self, episode: RunningEpisode, now: float) -> None:
        node = self._nodes[episode.node_id]
        node.held[episode.key] = episode
        node.held_mib += episode.memory_mib
        if not episode.confirmed:
            node.unconfirmed_mib += episode.memory_mib

    def confirm_episode(self, episode: RunningEpisode) -> None:
        """Note that the node's own figures include the episode from now on."""
        if not episode.confirmed:
            episode.confirmed = True
            self._nodes[episode.node_id].unconfirmed_mib -= episode.memory_mib

    def release(self, node_id: str, key: tuple[str, int], now: float) -> RunningEpisode | None:
        node = self._nodes.get(node_id)
        episode = node.held.pop(key, None) if node else None
        if node and episode:
            node.held_mib -= episode.memory_mib
            self.confirm_episode(episode)
            self.refresh(node, now)
        return episode

    def held_s(self, node_id: str, key: tuple[str, int], now: float) -> float | None:
        """Return the seconds since an episode was assigned, or None if another scheduler assigned it."""
        node = self._nodes.get(node_id)
        episode = node.held.get(key) if node else None
        return now - episode.ordered_at if episode and not episode.adopted else None

    def record_outcome(self, node_id: str, *, infra_failure: bool, now: float) -> None:
        """Count infrastructure failures in a row, and quarantine a node that only fails."""
        node = self._nodes.get(node_id)
        if node is None:
            return
        node.failures = node.failures + 1 if infra_failure else 0
        excess = node.failures - self.settings.failures_before_quarantine
        if excess >= 0:
            node.quarantined_until = now + self.settings.quarantine_s * 2 ** min(excess, 6)

    def refresh(self, node: Node, now: float) -> None:
        """Put an open node back into the rotations that dropped it."""
        if not node.is_open(now, self.settings):
            return
        self._open.setdefault(node.id)
        for image in node.stale_images:
            self._holders.setdefault(image, OrderedDict()).setdefault(node.id)
        node.stale_images.clear()

    def all_full(self, now: float) -> bool:
        """Return whether every node lacks a free slot and nothing else."""
        return all(node.availability(now, self.settings)[0] == "full" for node in self)

    def has_open(self, now: float) -> bool:
        return any(True for _ in self._candidates(self._open, None, now))

    def pick(self, task: TaskRef, avoid: str | None, now: float) -> Node | None:
        """Return the node for an episode, or None if no open node fits now. The node will hold the task's image."""
        node = self.choose(task, avoid, now)
        if node and task.image not in node.images:
            node.images.add(task.image)
            self._holders.setdefault(task.image, OrderedDict()).setdefault(node.id)
        return node

    def choose(self, task: TaskRef, avoid: str | None, now: float) -> Node | None:
        """Return the best node for a task, or None if no open node fits now.

        The least loaded of a few open nodes is taken, first among those that hold the image. A node that is near a
        threshold is taken only if there is no other.
        """
        if avoid is not None and len(self) == 1:
            avoid = None
        holders = self._holders.get(task.image)
        node = self._best(holders, task.image, task, avoid, now) if holders else None
        if node is None or node.admission.near:
            other = self._best(self._open, None, task, avoid, now)
            node = other if node is None or (other and not other.admission.near) else node
        return node

    def _best(self, rotation: Rotation, image: str | None, task: TaskRef, avoid: str | None, now: float) -> Node | None:
        open_nodes = self._candidates(rotation, image, now)
        fitting = [n for n in open_nodes if n.id != avoid and n.fits(task, self.settings.overcommit)]
        return min(fitting, key=lambda node: (node.admission.near, node.share), default=None)

    def _candidates(self, rotation: Rotation, image: str | None, now: float) -> Iterator[Node]:
        """Yield up to CANDIDATES open nodes from the front of a rotation, and move each to its back."""
        looked = 0
        while looked < min(CANDIDATES, len(rotation)):
            node = self._nodes[next(iter(rotation))]
            if not node.is_open(now, self.settings):
                del rotation[node.id]
                if image is not None:
                    node.stale_images.add(image)
                continue
            rotation.move_to_end(node.id)
            looked += 1
            yield node

    def _set_images(self, node: Node, images: frozenset[str]) -> None:
        for image in node.images - images:
            node.stale_images.discard(image)
            holders = self._holders.get(image, OrderedDict())
            holders.pop(node.id, None)
            if not holders:
                self._holders.pop(image, None)
        node.stale_images |= images - node.images
        node.images = set(images)

    def validate(self, now: float) -> None:
        for node in self:
            holders: list[RunningEpisode | PlacedSandbox] = [*node.held.values(), *node.sandboxes.values()]
            held = sum(one.memory_mib for one in holders)
            assert node.held_mib == held, f"{node.id}: {node.held_mib} MiB held, episodes and sandboxes hold {held}"
            unseen = sum(one.memory_mib for one in holders if not one.confirmed)
            assert node.unconfirmed_mib == unseen, f"{node.id}: {node.unconfirmed_mib} MiB unseen, not {unseen}"
            assert all(e.node_id == node.id and e.key == key for key, e in node.held.items()), node.held
            assert node.stale_images <= node.images, f"{node.id} is parked for images it does not hold"
            if node.is_open(now, self.settings):
                lost = [image for image in node.images if node.id not in self._holders.get(image, ())]
                assert set(lost) <= node.stale_images, f"{node.id} is open and lost to {lost}"
        for image, rotation in self._holders.items():
            assert all(image in self._nodes[node_id].images for node_id in rotation), f"{image}: {list(rotation)}"
        assert self._open.keys() <= self._nodes.keys()

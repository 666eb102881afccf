"""Admission control of a node by its live figures, with hysteresis."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from farm.scheduler.messages import Heartbeat


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of one figure.

    From ``avoid`` on, other nodes are preferred. At ``close`` the node takes no more episodes until the figure is below
    ``reopen``.
    """

    avoid: float
    close: float
    reopen: float


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Thresholds of a node's figures.

    ``memory`` and ``disk`` are used fractions. ``disk_missing_mib`` is the negative of the free space of the fuller of
    a node's two disks. ``memory_stall`` is the fraction of time in which some task waits for memory; it counts only if
    ``memory`` is at its ``avoid`` threshold.

    From ``threads`` per core, ``cpu_stall`` and ``io_stall`` on, other nodes are preferred; these figures never close a
    node. One sandbox that writes and syncs, or that starts more threads than it has processors, raises them on a
    healthy machine. Slots and the queue of test commands already share out a node's processors.

    A node opens ``cooldown_s`` after the last figure that kept it closed.
    """

    memory: Thresholds = Thresholds(0.8, 0.95, 0.9)
    memory_stall: Thresholds = Thresholds(0.05, 0.2, 0.1)
    disk: Thresholds = Thresholds(0.9, 0.95, 0.93)
    disk_missing_mib: Thresholds = Thresholds(-4096.0, -1024.0, -2048.0)
    threads: float = 4.0
    cpu_stall: float = 0.9
    io_stall: float = 0.6
    cooldown_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of admission control for one node.

    ``closed_by`` names the figures that keep the node closed. ``near``: other nodes are preferred. ``why`` is a text
    for people. ``until``: a closed node stays closed at least until then.
    """

    closed_by: frozenset[str] = frozenset()
    near: bool = False
    why: str = ""
    until: float = 0.0

    @property
    def closed(self) -> bool:
        return bool(self.closed_by)


def judge(before: Admission, beat: Heartbeat, settings: AdmissionSettings, now: float) -> Admission:
    """Return the admission of a node after a heartbeat, given the admission ``before`` it."""
    figures = list(_figures(beat, settings))
    over = {
        name: words
        for name, value, marks, words in figures
        if value >= (marks.reopen if name in before.closed_by else marks.close)
    }
    if over:
        return Admission(frozenset(over), near=True, why=next(iter(over.values())), until=now + settings.cooldown_s)
    if before.closed_by and now < before.until:
        return replace(before, why=f"a moment ago: {before.why.removeprefix('a moment ago: ')}")
    near = [words for _, value, marks, words in figures if value >= marks.avoid]
    near += _waits(beat, settings)
    return Admission(near=bool(near), why=next(iter(near), ""))


def _figures(beat: Heartbeat, settings: AdmissionSettings) -> Iterator[tuple[str, float, Thresholds, str]]:
    load, stall = beat.load, beat.pressure.memory_some
    yield "disk", load.disk, settings.disk, f"its disk is {load.disk:.0%} full"
    free = [mib for mib in (beat.disk_free_mib, beat.image_disk_free_mib) if mib is not None]
    if free:
        yield "room", -min(free), settings.disk_missing_mib, f"only {min(free)} MiB of a disk of it are free"
    yield "memory", load.memory, settings.memory, f"its memory is {load.memory:.0%} used"
    if load.memory >= settings.memory.avoid:
        yield "memory stall", stall, settings.memory_stall, f"its tasks wait for memory {stall:.0%} of the time"


def _waits(beat: Heartbeat, settings: AdmissionSettings) -> Iterator[str]:
    pressure = beat.pressure
    if beat.load.cpu >= settings.threads:
        yield f"{beat.load.cpu:.1f} threads wait for each of its cores"
    if pressure.cpu_some >= settings.cpu_stall:
        yield f"its tasks wait for a core {pressure.cpu_some:.0%} of the time"
    if pressure.io_some >= settings.io_stall:
        yield f"its tasks wait for a disk {pressure.io_some:.0%} of the time"

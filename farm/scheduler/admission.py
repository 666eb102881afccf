"""Whether a node takes more episodes, by the live figures that it tells of itself, with hysteresis."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from farm.scheduler.messages import Heartbeat


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Of one figure. From ``near`` on other nodes are preferred. At ``shut`` the node takes nothing more until the
    figure is below ``reopen``."""

    avoid: float
    close: float
    reopen: float


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """``memory``, ``disk``: used fractions. ``disk_missing_mib``: -1 times what is free of the fuller one of a node's
    disks. ``memory_stall``: the fraction of time in which some task waits for memory; it counts where memory is
    ``near`` its mark.

    From ``threads`` per core, ``cpu_stall`` and ``io_stall`` on other nodes are preferred, and that is all: one sandbox
    that writes and syncs, or starts more threads than it has processors, drives them up on a machine that is well.
    What processors a node has are shared out by its slots and by the turns of its test commands.

    A node opens ``calm_s`` after the last figure that kept it shut.
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
    """``shut``: the figures that keep the node shut. ``near``: other nodes are preferred. ``why`` is for people.
    ``until``: what is shut stays so at least until then."""

    closed_by: frozenset[str] = frozenset()
    near: bool = False
    why: str = ""
    until: float = 0.0

    @property
    def closed(self) -> bool:
        return bool(self.closed_by)


def judge(before: Admission, beat: Heartbeat, settings: AdmissionSettings, now: float) -> Admission:
    """What follows from a beat of a node that was judged ``before``."""
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

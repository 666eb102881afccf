"""How hard this machine is pressed, as the kernel tells it: pressure stall information (Linux 4.20), and memory.

A stall alone does not say that the machine is short of anything. Whatever stays at a limit of its own (a sandbox that
reads more than its memory holds, one that writes and syncs) stalls for as long as it likes, and the figures count it.
"""

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

LITTLE, PLENTY = 0.05, 0.25
"""Shares of the memory. Below the first is too little, whether somebody waits for it or not; above the second nobody
waits for want of it."""

MEMORY_STALL = 0.1


@dataclass(frozen=True, slots=True)
class Stall:
    """Fractions of the last 10 s: in which ``some`` task waited for the resource, and in which all that could have
    run did (``full``)."""

    some: float = 0.0
    full: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """``memory_left``: the fraction of the machine's memory that new work can have without anything being swapped."""

    cpu: Stall = Stall()
    memory: Stall = Stall()
    io: Stall = Stall()
    memory_left: float = 1.0

    @property
    def short_of_memory(self) -> bool:
        return self.memory_left < LITTLE or (self.memory_left < PLENTY and self.memory.some >= MEMORY_STALL)


def read_pressure(proc: Path = PROC) -> Pressure:
    """Nothing is pressed where the kernel does not tell."""
    cpu, memory, io = (_stall(_text(proc / "pressure" / name)) for name in ("cpu", "memory", "io"))
    return Pressure(cpu, memory, io, _memory_left(_text(proc / "meminfo")))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _stall(text: str) -> Stall:
    shares: dict[str, float] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        fields = dict(pair.split("=", 1) for pair in rest.split() if "=" in pair)
        shares[kind] = float(fields.get("avg10", 0)) / 100
    return Stall(shares.get("some", 0.0), shares.get("full", 0.0))


def _memory_left(text: str) -> float:
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in text.splitlines())}
    return kib.get("MemAvailable", 1) / kib.get("MemTotal", 1)

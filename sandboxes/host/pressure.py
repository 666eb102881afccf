"""Read how scarce the machine's resources are: pressure stall information (PSI, Linux 4.20), and free memory.

A stall does not prove a shortage: a process at its own limit (a sandbox that reads more than its memory holds, or
writes and syncs) also stalls, and PSI counts it.
"""

from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

MEMORY_SHORT, MEMORY_AMPLE = 0.05, 0.25
"""Fractions of the memory. Below the first, memory is short even without stalls; above the second, stalls have another
cause."""

MEMORY_STALL = 0.1


@dataclass(frozen=True, slots=True)
class Stall:
    """Fractions of the last 10 s in which ``some`` task, or all runnable tasks (``full``), waited for the resource."""

    some: float = 0.0
    full: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure of the machine. ``memory_left``: fraction of memory that new work can use without swapping."""

    cpu: Stall = Stall()
    memory: Stall = Stall()
    io: Stall = Stall()
    memory_left: float = 1.0

    @property
    def short_of_memory(self) -> bool:
        return self.memory_left < MEMORY_SHORT or (self.memory_left < MEMORY_AMPLE and self.memory.some >= MEMORY_STALL)


def read_pressure(proc: Path = PROC) -> Pressure:
    """Read the current pressure. A kernel without PSI reads as no pressure."""
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

"""How hard this machine is pressed, as the kernel tells it: pressure stall information (Linux 4.20)."""

from dataclasses import dataclass
from pathlib import Path

PSI = Path("/proc/pressure")


@dataclass(frozen=True, slots=True)
class Stall:
    """Fractions of the last 10 s: in which ``some`` task waited for the resource, and in which all that could have
    run did (``full``)."""

    some: float = 0.0
    full: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    cpu: Stall = Stall()
    memory: Stall = Stall()
    io: Stall = Stall()


def read_pressure(root: Path = PSI) -> Pressure:
    """Nothing is pressed where the kernel does not tell."""
    return Pressure(*(_read(root / name) for name in ("cpu", "memory", "io")))


def _read(path: Path) -> Stall:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return Stall()
    shares: dict[str, float] = {}
    for line in lines:
        kind, _, rest = line.partition(" ")
        fields = dict(pair.split("=", 1) for pair in rest.split() if "=" in pair)
        shares[kind] = float(fields.get("avg10", 0)) / 100
    return Stall(shares.get("some", 0.0), shares.get("full", 0.0))

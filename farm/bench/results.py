"""The results of a benchmark: figures, each beside the baseline that was measured in the same run."""

import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

import psutil

MIB = 1024 * 1024


class BenchError(Exception):
    """A benchmark could not take a measurement. The message is one line."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. ``baseline`` is in the same unit; None if there is no baseline."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    baseline_name: str | None = None

    @property
    def ratio(self) -> float | None:
        """Value over baseline."""
        return self.value / self.baseline if self.baseline else None


@dataclass(frozen=True, slots=True)
class Machine:
    cores: int
    memory_mib: int
    kernel: str
    runtime: str

    @staticmethod
    def here(runtime: str) -> "Machine":
        """Describe this machine; ``cores`` are those that this process may use."""
        return Machine(
            cores=len(os.sched_getaffinity(0)),
            memory_mib=psutil.virtual_memory().total // MIB,
            kernel=platform.release(),
            runtime=runtime,
        )


@dataclass(frozen=True, slots=True)
class BenchResult:
    bench: str
    machine: Machine
    figures: tuple[Figure, ...]

    def document(self) -> dict[str, Any]:
        """Return the result as the command prints it."""
        return {
            "bench": self.bench,
            "machine": asdict(self.machine),
            "figures": [asdict(figure) | {"ratio": figure.ratio} for figure in self.figures],
        }

"""The limits of one build, and the cgroup of a build step to which they are written."""

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandboxes.cgroups.cgroups import Hierarchies

MIB = 1 << 20
CPU_PERIOD_US = 100_000
CPU_QUOTA_LEAST_US = 1000
"""The smallest quota that the kernel accepts."""
NEEDED = frozenset({"memory", "pids", "cpu"})
"""The controllers of cgroup v1 that limit a step."""


@dataclass(frozen=True, slots=True)
class BuildLimits:
    """The limits that all steps of one build share. ``cpus`` is CPU time, in processors.

    ``timeout_max_s`` is the maximum duration of any build, even if its task allows more.
    """

    memory_mib: int = 2048
    processes: int = 1024
    disk_mib: int = 2048
    cpus: float = 2.0
    timeout_max_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class StepGroup:
    """The cgroup of one build step, by the path that the engine wrote into the step's OCI configuration."""

    memory: Path
    pids: Path
    cpu: Path
    unified: bool

    def process_ids(self) -> list[int]:
        """Return the host's process ids in the group, none before it exists and after it is removed."""
        with contextlib.suppress(OSError):
            return [int(line) for line in (self.pids / "cgroup.procs").read_text().split()]
        return []

    def limit(self, limits: BuildLimits) -> None:
        """Write the limits. Raises OSError if the kernel refuses them."""
        most = limits.memory_mib * MIB
        (self.pids / "pids.max").write_text(str(limits.processes))
        if self.unified:
            (self.memory / "memory.max").write_text(str(most))
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                (self.memory / "memory.swap.max").write_text("0")
        else:
            (self.memory / "memory.limit_in_bytes").write_text(str(most))
            with contextlib.suppress(FileNotFoundError):
                (self.memory / "memory.memsw.limit_in_bytes").write_text(str(most))

    def limit_cpus(self, cpus: float) -> None:
        """Limit the group to ``cpus`` processors. Raises OSError if the kernel refuses it."""
        quota = max(CPU_QUOTA_LEAST_US, round(cpus * CPU_PERIOD_US))
        if self.unified:
            (self.cpu / "cpu.max").write_text(f"{quota} {CPU_PERIOD_US}")
        else:
            (self.cpu / "cpu.cfs_period_us").write_text(str(CPU_PERIOD_US))
            try:
                (self.cpu / "cpu.cfs_quota_us").write_text(str(quota))
            except OSError as error:
                if error.errno != errno.EINVAL:  # EINVAL: a parent group has a lower limit
                    raise

    def memory_bytes(self) -> int:
        """Return anonymous and shared memory, without caches, which the kernel can take back."""
        with contextlib.suppress(OSError, ValueError):
            rows = dict(line.split() for line in (self.memory / "memory.stat").read_text().splitlines())
            return int(rows.get("anon" if self.unified else "rss", 0)) + int(rows.get("shmem", 0))
        return 0

    def process_count(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.pids / "pids.current").read_text())
        return 0


def candidates(hierarchies: Hierarchies, cgroups_path: str) -> Iterator[StepGroup]:
    """Yield the possible groups of an OCI ``cgroupsPath``: runc reads ``slice:prefix:name`` in two ways."""
    paths = [cgroups_path.strip("/")]
    if cgroups_path.count(":") == 2:
        slice_, prefix, name = cgroups_path.split(":")
        paths.append(f"{slice_}/{prefix}-{name}.scope")
    for path in paths:
        if hierarchies.unified:
            root = hierarchies.mounts[""]
            yield StepGroup(root / path, root / path, root / path, True)
        elif NEEDED.issubset(hierarchies.mounts):
            memory, pids, cpu = (hierarchies.mounts[name] / path for name in ("memory", "pids", "cpu"))
            yield StepGroup(memory, pids, cpu, False)

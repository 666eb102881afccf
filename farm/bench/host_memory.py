"""Measure the memory in use on the machine, without the page cache."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

_STEP_S = 0.25
_STILL_MIB = 4.0
_STILL_STEPS, _STEPS = 4, 20


def in_use_mib(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Return MemTotal - MemFree - Buffers - (Cached - Shmem) of proc_meminfo(5).

    The whole machine is measured, because the cost of a sandbox is distributed: its processes, the kernel's memory for
    its namespaces, mounts and cgroups, a container's shim, and the daemon that keeps its state. The page cache is left
    out, because it is reclaimable; Shmem, which the kernel counts as cache, is not. SReclaimable stays in: it holds
    directory entries and inodes in use by a running sandbox, and dropping caches freed only a sixth of it.
    """
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.open())}
    return (kib["MemTotal"] - kib["MemFree"] - kib["Buffers"] - kib["Cached"] + kib["Shmem"]) / 1024


async def settled_mib(
    read: Callable[[], float] = in_use_mib, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> float:
    """Wait until the memory in use is stable, because the kernel frees memory late; return the median of the last
    second.

    If other processes keep it changing, the wait ends after 5 s.
    """
    readings = [read()]
    while len(readings) < _STEPS and not _stand_still(readings):
        await pause(_STEP_S)
        readings.append(read())
    return statistics.median(readings[-_STILL_STEPS:])


def _stand_still(readings: Sequence[float]) -> bool:
    last = readings[-_STILL_STEPS:]
    return len(last) == _STILL_STEPS and max(last) - min(last) <= _STILL_MIB

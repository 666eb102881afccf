"""How much of the machine's memory is in use, page cache apart."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

_STEP_S = 0.25
_STILL_MIB = 4.0
_STILL_STEPS, _STEPS = 4, 20


def in_use_mib(meminfo: Path = Path("/proc/meminfo")) -> float:
    """MemTotal - MemFree - Buffers - (Cached - Shmem), of proc_meminfo(5).

    Of the whole machine, since what a sandbox costs is spread: its processes, the kernel's memory for its namespaces,
    mounts and control groups, a container's shim, the daemon that keeps its state. The page cache is left out, for it
    is given up when somebody needs memory; Shmem, which the kernel counts as cache, is not. SReclaimable stays in:
    directory entries and inodes in use by a living sandbox are part of it, and dropping caches freed a sixth of it.
    """
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.open())}
    return (kib["MemTotal"] - kib["MemFree"] - kib["Buffers"] - kib["Cached"] + kib["Shmem"]) / 1024


async def settled_mib(
    read: Callable[[], float] = in_use_mib, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> float:
    """What is in use once it stands still, for what has ended is freed a while later; the median of its last second.

    Where others keep it moving it is not waited for longer than 5 s.
    """
    readings = [read()]
    while len(readings) < _STEPS and not _stand_still(readings):
        await pause(_STEP_S)
        readings.append(read())
    return statistics.median(readings[-_STILL_STEPS:])


def _stand_still(readings: Sequence[float]) -> bool:
    last = readings[-_STILL_STEPS:]
    return len(last) == _STILL_STEPS and max(last) - min(last) <= _STILL_MIB

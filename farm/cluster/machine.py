"""This machine as a place for sandboxes: what it holds and how hard it is pressed."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from farm.core.events import Load

MIB = 1024 * 1024
SLOTS_PER_CORE = 4
MIB_PER_SLOT = 1024


@dataclass(frozen=True, slots=True)
class Reading:
    load: Load
    memory_available_mib: int


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def default_slots() -> int:
    """Episodes at once: four a core, since an episode mostly waits for its policy, and a GiB of memory for each."""
    memory_mib = int(psutil.virtual_memory().total) // MIB
    return max(1, min(cores() * SLOTS_PER_CORE, memory_mib // MIB_PER_SLOT - 1))


def read_machine(disk: Path) -> Reading:
    """``disk`` is a directory on the file system whose fullness counts."""
    memory = psutil.virtual_memory()
    load = Load(
        cpu=os.getloadavg()[0] / cores(),
        memory=memory.percent / 100,
        disk=psutil.disk_usage(str(disk)).percent / 100,
    )
    return Reading(load, int(memory.available) // MIB)

"""This machine as a place for sandboxes: what it holds and how hard it is pressed."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from farm.core.events import Load, Pressure
from sandboxes.host_readings import read_memory_mib

MIB = 1024 * 1024
SLOTS_PER_CORE = 4
MIB_PER_SLOT = 1024

PRESSURE = Path("/proc/pressure")


@dataclass(frozen=True, slots=True)
class Reading:
    """``pressure`` None: the kernel does not tell. ``image_disk_free_mib`` None: nobody knows where the images are."""

    load: Load
    pressure: Pressure | None
    memory_available_mib: int
    disk_free_mib: int
    image_disk_free_mib: int | None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def default_slots() -> int:
    """Episodes at once: four a core, since an episode mostly waits for its policy, and a GiB of memory for each."""
    return max(1, min(cores() * SLOTS_PER_CORE, read_memory_mib() // MIB_PER_SLOT - 1))


def read_machine(disk: Path, image_disk: Path | None = None) -> Reading:
    """``disk`` and ``image_disk`` are directories on file systems; the fullness of the first counts as load."""
    memory = psutil.virtual_memory()
    usage = psutil.disk_usage(str(disk))
    load = Load(cpu=os.getloadavg()[0] / cores(), memory=memory.percent / 100, disk=usage.percent / 100)
    return Reading(
        load,
        read_pressure(),
        memory_available_mib=int(memory.available) // MIB,
        disk_free_mib=int(usage.free) // MIB,
        image_disk_free_mib=int(psutil.disk_usage(str(image_disk)).free) // MIB if image_disk else None,
    )


def read_pressure(directory: Path = PRESSURE) -> Pressure | None:
    """Pressure stall information, as Documentation/accounting/psi.rst of the kernel has it; None without it."""
    try:
        texts = {kind: (directory / kind).read_text() for kind in ("cpu", "memory", "io")}
    except OSError:  # it was not built in, or psi=0 turned it off
        return None

    def share(kind: str, which: str) -> float:
        found = re.search(rf"^{which} avg10=([\d.]+)", texts[kind], re.MULTILINE)
        return float(found[1]) / 100 if found else 0.0

    return Pressure(
        cpu_some=share("cpu", "some"),
        memory_some=share("memory", "some"),
        memory_full=share("memory", "full"),
        io_some=share("io", "some"),
        io_full=share("io", "full"),
    )

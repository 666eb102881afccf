"""This machine as a place for sandboxes: what it holds and how hard it is pressed."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from farm.scheduler.admission import AdmissionSettings
from farm.scheduler.messages import Load, PressureStall
from sandboxes.host.pressure import read_pressure
from sandboxes.host.readings import read_memory_mib

MIB = 1024 * 1024
SLOTS_PER_CORE = 4
MIB_PER_SLOT = 1024


@dataclass(frozen=True, slots=True)
class HostReading:
    """``image_disk_free_mib`` None: nobody knows where the images are."""

    load: Load
    pressure: PressureStall
    memory_mib: int
    memory_available_mib: int
    disk_free_mib: int
    image_disk_free_mib: int | None


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def default_slots() -> int:
    """Episodes at once: four a core, since an episode mostly waits for its policy, and a GiB of memory for each."""
    return max(1, min(cores() * SLOTS_PER_CORE, read_memory_mib() // MIB_PER_SLOT - 1))


def max_sandboxes(slots: int) -> int:
    """How many sandboxes share a node's disk: for each slot one of a policy, one in which it is judged, one ready."""
    return 3 * slots


def read_machine(disk: Path, image_disk: Path | None = None) -> HostReading:
    """``disk`` and ``image_disk`` are directories on file systems; the fullness of the first counts as load."""
    memory = psutil.virtual_memory()
    usage = psutil.disk_usage(str(disk))
    load = Load(cpu=os.getloadavg()[0] / cores(), memory=memory.percent / 100, disk=usage.percent / 100)
    return HostReading(
        load,
        _pressure(),
        memory_mib=read_memory_mib(),
        memory_available_mib=int(memory.available) // MIB,
        disk_free_mib=int(usage.free) // MIB,
        image_disk_free_mib=int(psutil.disk_usage(str(image_disk)).free) // MIB if image_disk else None,
    )


def short_of(disk: Path) -> str:
    """What the machine is too short of to have sandboxes ready that nobody uses; empty where it has enough."""
    if read_pressure().short_of_memory:
        return "memory is short"
    if psutil.disk_usage(str(disk)).percent / 100 >= AdmissionSettings().disk.avoid:
        return f"the disk of {disk} is nearly full"
    return ""


def _pressure() -> PressureStall:
    told = read_pressure()
    return PressureStall(
        cpu_some=told.cpu.some,
        memory_some=told.memory.some,
        memory_full=told.memory.full,
        io_some=told.io.some,
        io_full=told.io.full,
    )

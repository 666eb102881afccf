"""The limits and hosts of image builds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The keys of the configuration that begin with ``build_``, as they travel to a node agent."""

    hosts: tuple[str, ...] = ()
    registries: tuple[str, ...] = ()
    memory_mib: int = 2048
    processes: int = 1024
    disk_mib: int = 2048
    cpus: float = 2.0
    timeout_max_s: float = 3600.0

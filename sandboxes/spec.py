"""What a sandbox boots from and what it is granted."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings on one sandbox; reached, the sandbox suffers and the host does not.

    ``disk_mib`` bounds all that it writes, where the runtime can (``farm doctor`` says).
    """

    memory_mib: int = 2048
    cpus: float = 1.0
    pids: int = 512
    open_files: int = 4096
    file_size_mib: int = 1024
    disk_mib: int = 10_240


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """``image`` is a local name or digest. ``workdir`` None takes the image's, or ``/``.

    ``env`` is added to the image's own environment. ``labels`` are for people and queries; the keys that begin
    with ``farm.`` belong to the runtime.
    """

    image: str
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict)

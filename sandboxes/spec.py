"""What a sandbox boots from and what it is granted."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sandboxes.egress import AllowList, proxy_environment
from sandboxes.errors import SpecError

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}")
_ENV_NAME = re.compile(r"[^=\0]+")


@dataclass(frozen=True, slots=True)
class SandboxLimits:
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
    """``image`` is a local name or digest. ``workdir`` None takes the image's, or ``/``;
    one that the image does not have, or does not let its user enter, is refused with SpecError when it boots.

    ``env`` is added to the image's own environment. ``labels`` are for people and queries; the keys that begin
    with ``farm.`` belong to the runtime. ``egress`` names the hosts that may be reached, through a proxy outside
    (``sandboxes.egress.allowlist`` has the patterns); empty: none, and no way out at all. ``to_fork``: it is to be
    copied, so what it writes is written down as it goes; otherwise that begins with the first copy, which waits for it.
    ``private_layers``: it shares no cached directory or file of its image with another sandbox, if the runtime can; so
    no later sandbox can find out by the time of a lookup what was looked up here. It takes memory for each file that
    it reads.
    """

    image: str
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = field(default_factory=SandboxLimits)
    labels: Mapping[str, str] = field(default_factory=dict)
    egress: tuple[str, ...] = ()
    to_fork: bool = False
    private_layers: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What is added to the image's environment: ``env``, and where the proxy is, if there is one."""
        return {**(proxy_environment() if self.egress else {}), **self.env}


def check_image_name(name: str) -> None:
    """Raises SpecError for what would lead elsewhere at the daemon."""
    if not _IMAGE.fullmatch(name) or ".." in name:
        raise SpecError(f"image {name[:255]!r} is not the name of an image")


def check_spec(spec: SandboxSpec) -> None:
    """Raises SpecError for what no sandbox can be."""
    check_image_name(spec.image)
    if spec.workdir is not None and (not spec.workdir.startswith("/") or "\0" in spec.workdir):
        raise SpecError(f"workdir {spec.workdir!r}: give an absolute path")
    for key, value in spec.env.items():
        if not _ENV_NAME.fullmatch(key) or "\0" in value:
            raise SpecError(f"env {key!r}: a name has no '=' and neither it nor its value a zero byte")
    for key in spec.labels:
        if key.startswith("farm."):
            raise SpecError(f"label {key!r}: keys that begin with 'farm.' belong to the runtime")
    AllowList.parse(spec.egress)
    _check_limits(spec.limits)


def _check_limits(limits: SandboxLimits) -> None:
    for name, value, least, most in (
        ("memory_mib", limits.memory_mib, 16, 2**24),
        ("cpus", limits.cpus, 0.01, 4096),
        ("pids", limits.pids, 8, 2**22),
        ("open_files", limits.open_files, 32, 2**20),
        ("file_size_mib", limits.file_size_mib, 1, 2**24),
        ("disk_mib", limits.disk_mib, 1, 2**24),
    ):
        if not math.isfinite(value) or not least <= value <= most:
            raise SpecError(f"{name} is {value}; give a number from {least} to {most}")

"""Sandboxes: isolated places in which untrusted code runs, and the tools a policy uses there. Usable alone.

runtime = await open_runtime("auto", state_dir=Path("/var/lib/farm"))
async with runtime.scope(SandboxSpec("debian:12")) as sandbox:
    print((await sandbox.shell("uname -a", timeout_s=10)).stdout.head)

sandboxes/docs/README.md explains it.
"""

import logging
from pathlib import Path

from sandboxes.egress import Grants
from sandboxes.errors import (
    AnswerLost,
    BootError,
    DiskFull,
    ImageError,
    JobError,
    LossCause,
    PathError,
    ProtocolError,
    RuntimeUnavailable,
    SandboxError,
    SandboxGone,
    SnapshotError,
    SpecError,
)
from sandboxes.interface import Capture, ExecResult, FileEntry, FileKind, JobOutput, Runtime, Sandbox
from sandboxes.runtimes.docker.runtime import DockerRuntime
from sandboxes.runtimes.oci.runtime import PLACES, OciRuntime
from sandboxes.snapshot import Snapshot
from sandboxes.spec import SandboxLimits, SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.warm_pool import WarmPool

__all__ = [
    "AnswerLost",
    "BootError",
    "Capture",
    "DockerRuntime",
    "ExecResult",
    "FakeRuntime",
    "FileEntry",
    "FileKind",
    "ImageError",
    "JobError",
    "JobOutput",
    "LossCause",
    "OciRuntime",
    "PathError",
    "ProtocolError",
    "Runtime",
    "RuntimeKind",
    "RuntimeUnavailable",
    "Sandbox",
    "SandboxError",
    "SandboxGone",
    "SandboxLimits",
    "SandboxSpec",
    "Snapshot",
    "SnapshotError",
    "SpecError",
    "WarmPool",
    "open_runtime",
]

RuntimeKind = str
"""``auto``, ``oci``, ``docker``, or ``docker:NAME`` with the name of an OCI runtime that the daemon knows."""

_NO_GRANTS = Grants()

log = logging.getLogger(__name__)


async def open_runtime(
    kind: RuntimeKind = "auto",
    *,
    state_dir: Path,
    owner: str | None = None,
    grace_s: float = 0.0,
    docker_host: str | None = None,
    places: int = PLACES,
    granted: Grants = _NO_GRANTS,
) -> Runtime:
    """``auto``: ``oci`` where this machine can, else ``docker``; the log says why. Raises RuntimeUnavailable.

    ``owner`` None: a fresh name. What lives when a process of a name dies is spared for ``grace_s``, and may be adopted
    by the next of that name. ``places``: that many share a disk under ``oci``, each an equal part. ``granted``: what
    the operator lets sandboxes reach beside the internet. What sandboxes here go without is logged.
    """
    docker, _, oci_runtime = kind.partition(":")
    if docker != "docker":
        try:
            runtime = await OciRuntime.open(
                state_dir=state_dir, owner=owner, grace_s=grace_s, docker_host=docker_host, places=places
            )
            for lack in runtime.degraded:
                log.warning("sandboxes here lack something: %s", lack)
            runtime.granted = granted
            return runtime
        except RuntimeUnavailable as error:
            if kind == "oci" or isinstance(error, DiskFull):  # Docker's have no limits on disk at all
                raise
            log.warning("sandboxes are Docker containers, which start slower: %s", error)
    containers = await DockerRuntime.open(
        state_dir=state_dir, owner=owner, grace_s=grace_s, docker_host=docker_host, oci_runtime=oci_runtime or None
    )
    containers.granted = granted
    return containers

"""Sandboxes: isolated places in which untrusted code runs, and the tools a policy uses there. Usable alone.

runtime = await open_runtime("auto", state_dir=Path("/var/lib/farm"))
async with runtime.scope(SandboxSpec("debian:12")) as sandbox:
    print((await sandbox.shell("uname -a", timeout_s=10)).stdout.head)
"""

from pathlib import Path
from typing import Literal

from sandboxes.errors import (
    BootError,
    GoneBy,
    ImageError,
    PathError,
    ProtocolError,
    RuntimeUnavailable,
    SandboxError,
    SandboxGone,
    SpecError,
)
from sandboxes.runtimes.docker import DockerRuntime
from sandboxes.runtimes.fake import FakeRuntime
from sandboxes.sandbox import Capture, ExecResult, FileEntry, FileKind, Runtime, Sandbox
from sandboxes.spec import Limits, SandboxSpec

__all__ = [
    "BootError",
    "Capture",
    "DockerRuntime",
    "ExecResult",
    "FakeRuntime",
    "FileEntry",
    "FileKind",
    "GoneBy",
    "ImageError",
    "Limits",
    "PathError",
    "ProtocolError",
    "Runtime",
    "RuntimeUnavailable",
    "Sandbox",
    "SandboxError",
    "SandboxGone",
    "SandboxSpec",
    "SpecError",
    "open_runtime",
]


async def open_runtime(
    kind: Literal["auto", "docker"] = "auto", *, state_dir: Path, docker_host: str | None = None
) -> Runtime:
    """The best way to run sandboxes on this machine, or the one asked for. Raises RuntimeUnavailable."""
    return await DockerRuntime.open(state_dir=state_dir, docker_host=docker_host)

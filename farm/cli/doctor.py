"""``farm doctor``: what this machine lacks, and how to mend it."""

import asyncio
import importlib.util
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import psutil
from rich.table import Table

from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console
from farm.config import LOOPBACK, Config

DISK_WANTED_GIB = 10
MEMORY_WANTED_GIB = 4


class Mark(StrEnum):
    OK = "ok"
    WARN = "warn"
    LACKS = "lacks"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``remedy`` is empty where nothing needs doing."""

    name: str
    mark: Mark
    found: str
    remedy: str = ""


def doctor(config: ConfigFile = None, state_dir: StateDir = None, as_json: AsJson = False) -> int:
    """Say what this machine lacks to run a farm, and how to mend it. Exit code 1 where it lacks something."""
    findings = examine(read_config(config, state_dir))
    healthy = all(finding.mark is not Mark.LACKS for finding in findings)
    if as_json:
        print_json({"healthy": healthy, "findings": [asdict(finding) for finding in findings]})
    else:
        table = Table("what", "", "found", "what to do", box=None, pad_edge=False)
        colour = {Mark.OK: "green", Mark.WARN: "yellow", Mark.LACKS: "red"}
        for finding in findings:
            mark = f"[{colour[finding.mark]}]{finding.mark}[/]"
            table.add_row(finding.name, mark, finding.found, finding.remedy)
        table_console.print(table)
    return 0 if healthy else 1


def examine(config: Config) -> list[Finding]:
    checks: tuple[Callable[[Config], Finding], ...] = (
        _machine,
        _state_dir,
        _docker,
        _toolbox,
        _redis,
        _ray,
        _gateway_port,
    )
    return [check(config) for check in checks]


def _machine(config: Config) -> Finding:
    memory_gib = psutil.virtual_memory().total / 2**30
    found = f"{os.cpu_count()} cores, {memory_gib:.0f} GiB"
    if memory_gib < MEMORY_WANTED_GIB:
        return Finding("machine", Mark.WARN, found, f"give it {MEMORY_WANTED_GIB} GiB; Ray alone takes about one")
    return Finding("machine", Mark.OK, found)


def _state_dir(config: Config) -> Finding:
    existing = next(path for path in (config.state_dir, *config.state_dir.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return Finding(
            "state directory",
            Mark.LACKS,
            f"{existing} is not writable",
            "choose another with --state-dir or FARM_STATE_DIR",
        )
    free_gib = shutil.disk_usage(existing).free / 2**30
    found = f"{config.state_dir}, {free_gib:.0f} GiB free"
    if free_gib < DISK_WANTED_GIB:
        return Finding("state directory", Mark.WARN, found, f"free {DISK_WANTED_GIB} GiB; images need it")
    return Finding("state directory", Mark.OK, found)


def _docker(config: Config) -> Finding:
    from sandboxes.errors import SandboxError
    from sandboxes.images import ImageStore

    async def ask() -> str:
        images = ImageStore(config.docker_host)
        try:
            return await images.engine()
        finally:
            await images.close()

    try:
        return Finding("docker", Mark.OK, asyncio.run(ask()))
    except SandboxError as error:
        return Finding("docker", Mark.LACKS, "does not answer", str(error))


def _toolbox(config: Config) -> Finding:
    from sandboxes.errors import SandboxError
    from sandboxes.toolbox import ensure_toolbox

    try:
        return Finding("toolbox", Mark.OK, str(ensure_toolbox(config.state_dir).path))
    except (SandboxError, OSError) as error:
        return Finding("toolbox", Mark.LACKS, "cannot be built", str(error))


def _redis(config: Config) -> Finding:
    if config.redis_url is not None:
        return Finding("redis", Mark.OK, "the one that redis_url names")
    path = shutil.which("redis-server")
    if path is None:
        return Finding("redis", Mark.LACKS, "no redis-server", "apt-get install redis-server, or set redis_url")
    return Finding("redis", Mark.OK, path)


def _ray(config: Config) -> Finding:
    if importlib.util.find_spec("ray") is None:
        return Finding("ray", Mark.LACKS, "not installed", "pip install ray")
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return Finding("ray", Mark.WARN, "no /dev/shm", "mount a tmpfs there; Ray is slow without it")
    return Finding("ray", Mark.OK, "installed")


def _gateway_port(config: Config) -> Finding:
    from farm.cluster import running_farm

    info = running_farm(config.state_dir)
    if info is not None:
        return Finding("gateway address", Mark.OK, f"{info.url or config.url}, a farm is up here")
    exposure = "loopback only" if config.host in LOOPBACK else "open to the network, with tokens"
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            return Finding(
                "gateway address",
                Mark.WARN,
                f"{config.url}: {error.strerror}",
                "end what listens there, or choose another with FARM_PORT",
            )
    return Finding("gateway address", Mark.OK, f"{config.url}, {exposure}")

"""``farm doctor``: checks of this machine, with remedies."""

import asyncio
import os
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer
from rich.table import Table
from rich.text import Text

from farm.cli.doctor.check_result import CheckMark, CheckResult
from farm.cli.options import AsJson, ConfigFile, StateDir, print_json, read_config, table_console
from farm.config import LOOPBACK, Config

if TYPE_CHECKING:
    from sandboxes.host.limits import Footprint, SandboxAllowance

DISK_WANTED_GIB = 10
MEMORY_WANTED_GIB = 4


@dataclass(frozen=True, slots=True)
class Examination:
    """All results. ``limits``: what the host's limits allow for ``sandboxes`` at once.

    ``asked``: the number of sandboxes was given. Without it a limit that is too low is a warning, because it is reached
    only if all sandboxes of the slots are at their own limits at once.
    """

    findings: Sequence[CheckResult]
    sandboxes: int
    limits: Sequence["SandboxAllowance"]
    asked: bool = False

    @property
    def too_low(self) -> "Sequence[SandboxAllowance]":
        return [limit for limit in self.limits if limit.remedy]

    @property
    def healthy(self) -> bool:
        lacking = any(finding.mark is CheckMark.LACKS for finding in self.findings)
        return not lacking and not (self.asked and self.too_low)


def doctor(
    sandboxes: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="How many at once; three for each slot of this machine by default."),
    ] = None,
    config: ConfigFile = None,
    state_dir: StateDir = None,
    as_json: AsJson = False,
) -> int:
    """Check what this machine lacks to run a farm, and how many sandboxes its limits allow.

    Exit code 1 if it lacks something, or if a limit allows fewer sandboxes than --sandboxes.
    """
    found = examine(read_config(config, state_dir), sandboxes)
    if as_json:
        limits = [{**asdict(limit), "unit": limit.unit, "verdict": limit.verdict} for limit in found.limits]
        findings = [asdict(finding) for finding in found.findings]
        print_json({"healthy": found.healthy, "findings": findings, "sandboxes": found.sandboxes, "limits": limits})
    else:
        _show(found)
    return 0 if found.healthy else 1


def _show(found: Examination) -> None:
    from sandboxes.host.limits import UNLIMITED_SYSCTLS

    colour = {CheckMark.OK: "green", CheckMark.WARN: "yellow", CheckMark.LACKS: "red"}
    table = Table("what", "", "found", "what to do", box=None, pad_edge=False)
    for finding in found.findings:
        table.add_row(finding.name, Text(finding.mark, style=colour[finding.mark]), finding.found, finding.remedy)
    table_console.print(table)
    table_console.print(f"\nlimits of this host, for {found.sandboxes} sandboxes at once")
    limits = Table("limit", "", "is", "each sandbox takes", "allows", "what to do", box=None, pad_edge=False)
    for limit in found.limits:
        mark = Text("raise", style="yellow") if limit.remedy else Text("ok", style="green")
        amounts = (f"{limit.value:,} {limit.unit}", f"{limit.each:,} {limit.unit}", f"{limit.allows:,} sandboxes")
        limits.add_row(limit.name, mark, *amounts, limit.remedy)
    table_console.print(limits)
    for limit in found.too_low:
        table_console.print(f"{limit.name} counts {limit.why}")
    table_console.print("\nno limit to how many")
    for name, why in UNLIMITED_SYSCTLS.items():
        table_console.print(f"{name}: {why}")


def examine(config: Config, sandboxes: int | None = None) -> Examination:
    """Run all checks. It raises nothing: a check that fails is a result."""
    from farm.cli.doctor.configured import check_configured
    from sandboxes.host.limits import judge
    from sandboxes.host.readings import read_host

    before: tuple[Callable[[Config], CheckResult], ...] = (_machine, _state_dir, _docker, _image_builds, _toolbox)
    after = (_user_namespaces, _pressure, _redis, _ray, _ruff, _gateway_port)
    findings = [check(config) for check in before]
    of_runtime, footprint = _runtime(config)
    wanted = sandboxes or _places(config)
    limits = judge(read_host(), footprint, wanted)
    found = [*findings, *of_runtime, *(check(config) for check in after), *check_configured(config)]
    return Examination(found, wanted, limits, asked=sandboxes is not None)


def _machine(config: Config) -> CheckResult:
    memory_gib = psutil.virtual_memory().total / 2**30
    found = f"{os.cpu_count()} cores, {memory_gib:.0f} GiB"
    if memory_gib < MEMORY_WANTED_GIB:
        return CheckResult(
            "machine", CheckMark.WARN, found, f"give it {MEMORY_WANTED_GIB} GiB; Ray alone takes about one"
        )
    return CheckResult("machine", CheckMark.OK, found)


def _state_dir(config: Config) -> CheckResult:
    existing = next(path for path in (config.state_dir, *config.state_dir.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        return CheckResult(
            "state directory",
            CheckMark.LACKS,
            f"{existing} is not writable",
            "choose another with --state-dir or FARM_STATE_DIR",
        )
    free_gib = shutil.disk_usage(existing).free / 2**30
    found = f"{config.state_dir}, {free_gib:.0f} GiB free"
    if free_gib < DISK_WANTED_GIB:
        return CheckResult("state directory", CheckMark.WARN, found, f"free {DISK_WANTED_GIB} GiB; images need it")
    return CheckResult("state directory", CheckMark.OK, found)


def _docker(config: Config) -> CheckResult:
    from sandboxes.errors import SandboxError
    from sandboxes.images.store import ImageStore

    async def ask() -> str:
        images = ImageStore(config.docker_host)
        try:
            return await images.engine()
        finally:
            await images.close()

    try:
        return CheckResult("docker", CheckMark.OK, asyncio.run(ask()))
    except SandboxError as error:
        return CheckResult("docker", CheckMark.LACKS, "does not answer", str(error))


def _image_builds(config: Config) -> CheckResult:
    """Check whether images can be built here. Built images can be pulled in any case."""
    from farm.build_config import read_build_settings
    from sandboxes.errors import SandboxError
    from sandboxes.images.build import find_client
    from sandboxes.images.confinement import REMEDY, find_obstacle
    from sandboxes.images.store import ImageStore

    settings = read_build_settings(config.build)

    async def ask() -> "tuple[str, Path]":
        images = ImageStore(config.docker_host)
        try:
            settings.access.upstreams()
            return find_obstacle(await images.root()), await find_client(settings)
        finally:
            await images.close()

    try:
        obstacle, client = asyncio.run(ask())
    except SandboxError as error:
        return CheckResult("image builds", CheckMark.WARN, "none: images can only be pulled", str(error))
    if obstacle:
        return CheckResult("image builds", CheckMark.WARN, f"none, images can only be pulled: {obstacle}", REMEDY)
    return CheckResult("image builds", CheckMark.OK, f"as root on a local daemon, by {client}")


def _toolbox(config: Config) -> CheckResult:
    from sandboxes.errors import SandboxError
    from sandboxes.toolserver.toolbox import ensure_toolbox

    try:
        return CheckResult("toolbox", CheckMark.OK, str(ensure_toolbox(config.state_dir).path))
    except (SandboxError, OSError) as error:
        return CheckResult("toolbox", CheckMark.LACKS, "cannot be built", str(error))


def _runtime(config: Config) -> "tuple[list[CheckResult], Footprint]":
    """Return the checks of the runtime that a farm would take, and its use of the host per sandbox."""
    from sandboxes.errors import SandboxError
    from sandboxes.host.limits import DOCKER
    from sandboxes.runtimes.oci.runtime import OciRuntime

    async def try_oci() -> "tuple[list[CheckResult], Footprint]":
        runtime = await OciRuntime.open(
            state_dir=config.state_dir,
            docker_host=config.docker_host,
            disk_shares=_places(config),
        )
        try:
            found = CheckResult("runtime", CheckMark.OK, f"oci: {runtime.description}")
            return [
                found,
                *_slower(runtime.description),
                *(CheckResult("sandboxes", CheckMark.WARN, lack) for lack in runtime.degraded),
            ], runtime.footprint
        finally:
            await runtime.close()

    if config.runtime.startswith("docker"):
        return _docker_runtime(config), DOCKER
    try:
        return asyncio.run(try_oci())
    except (SandboxError, OSError) as error:
        mark = CheckMark.LACKS if config.runtime == "oci" else CheckMark.WARN
        return [CheckResult("runtime", mark, f"docker, which starts slower; not oci: {error}")], DOCKER


def _places(config: Config) -> int:
    """Return the maximum of sandboxes that a farm here may have at once."""
    from farm.node.host_stats import default_slots, max_sandboxes

    return max_sandboxes(config.slots or default_slots())


def _docker_runtime(config: Config) -> list[CheckResult]:
    from sandboxes.errors import SandboxError
    from sandboxes.runtimes.docker.runtime import DockerRuntime

    async def try_docker() -> tuple[str, ...]:
        named = config.runtime.partition(":")[2]
        runtime = await DockerRuntime.open(
            state_dir=config.state_dir, docker_host=config.docker_host, oci_runtime=named or None
        )
        await runtime.close()
        return runtime.degraded

    try:
        lacks = asyncio.run(try_docker())
    except (SandboxError, OSError) as error:
        return [CheckResult("runtime", CheckMark.LACKS, f"{config.runtime} cannot be used", str(error))]
    found = CheckResult("runtime", CheckMark.OK, f"{config.runtime}, as configured")
    return [found, *(CheckResult("sandboxes", CheckMark.WARN, lack) for lack in lacks)]


def _slower(description: str) -> "list[CheckResult]":
    """Return what the oci runtime lacks, at the cost of time."""
    from sandboxes.errors import RuntimeUnavailable
    from sandboxes.runtimes.oci.seccomp_filter import compile_filter

    found = []
    if not description.startswith("crun"):
        words = "without crun, and runc takes four times as long to start one"
        found.append(CheckResult("sandboxes", CheckMark.WARN, words, "apt-get install crun"))
    try:
        compile_filter()
    except RuntimeUnavailable as error:
        words = f"each start compiles their filter anew, which doubles its time: {error}"
        found.append(CheckResult("sandboxes", CheckMark.WARN, words, "apt-get install libseccomp2"))
    return found


def _user_namespaces(config: Config) -> CheckResult:
    """Check user namespaces; see user_namespaces(7)."""
    most = Path("/proc/sys/user/max_user_namespaces")
    if not most.exists():
        return CheckResult("user namespaces", CheckMark.WARN, "the kernel has none: root in a sandbox is root outside")
    if int(most.read_text()) == 0:
        remedy = "sysctl -w user.max_user_namespaces=65536"
        return CheckResult("user namespaces", CheckMark.WARN, "forbidden: root in a sandbox is root outside", remedy)
    return CheckResult("user namespaces", CheckMark.OK, f"at most {most.read_text().strip()}")


def _pressure(config: Config) -> CheckResult:
    """Check pressure stall information; see Documentation/accounting/psi.rst of the kernel."""
    try:
        Path("/proc/pressure/memory").read_text()
    except OSError:  # not built in, or turned off
        return CheckResult(
            "pressure", CheckMark.WARN, "the kernel does not tell how hard it is pressed", "boot it with psi=1"
        )
    return CheckResult("pressure", CheckMark.OK, "the kernel tells it")


def _redis(config: Config) -> CheckResult:
    if config.redis_url is not None:
        return _outside_redis(config.redis_url.get_secret_value())
    path = shutil.which("redis-server")
    if path is None:
        return CheckResult(
            "redis", CheckMark.LACKS, "no redis-server", "apt-get install redis-server, or set redis_url"
        )
    return CheckResult("redis", CheckMark.OK, path)


def _outside_redis(url: str) -> CheckResult:
    from farm.store import StoreUnavailable, examine_redis

    try:
        found, lacks = asyncio.run(examine_redis(url))
    except StoreUnavailable as error:
        cause, _, remedy = str(error).rpartition("; ")
        return CheckResult("redis", CheckMark.LACKS, cause, remedy)
    if lacks:
        return CheckResult("redis", CheckMark.WARN, found, "; ".join(lacks))
    return CheckResult("redis", CheckMark.OK, found)


def _ray(config: Config) -> CheckResult:
    from farm.cluster.versions import ray_fault

    if fault := ray_fault():
        return CheckResult("ray", CheckMark.LACKS, *fault)
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return CheckResult("ray", CheckMark.WARN, "no /dev/shm", "mount a tmpfs there; Ray is slow without it")
    return CheckResult("ray", CheckMark.OK, "installed")


def _ruff(config: Config) -> CheckResult:
    from farm.cluster.versions import ruff_fault

    if fault := ruff_fault():
        return CheckResult("ruff", CheckMark.LACKS, *fault)
    return CheckResult("ruff", CheckMark.OK, "the version that style is measured with")


def _gateway_port(config: Config) -> CheckResult:
    from farm.cli.doctor.configured import own_addresses, why_not_own
    from farm.cluster import running_farm

    info = running_farm(config.state_dir)
    if info is not None:
        return CheckResult("gateway address", CheckMark.OK, f"{info.url or config.url}, a farm is up here")
    if why := why_not_own(config.host):
        remedy = f"set FARM_HOST to an address of this machine: {', '.join(own_addresses())}"
        found = f"{config.host} is no address of this machine: {why}"
        return CheckResult("gateway address", CheckMark.LACKS, found, remedy)
    exposure = "loopback only" if config.host in LOOPBACK else "open to the network, with tokens"
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.host, config.port))
        except OSError as error:
            return CheckResult(
                "gateway address",
                CheckMark.WARN,
                f"{config.url}: {error.strerror}",
                "end what listens there, or choose another with FARM_PORT",
            )
    return CheckResult("gateway address", CheckMark.OK, f"{config.url}, {exposure}")

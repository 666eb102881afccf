"""An environment of Harbor: ``harbor run --env farm.plugins.harbor:FarmEnvironment``.

The sandboxes are those of this machine, without a running farm. Images are built and pulled as for the farm's own
tasks, so a build step reaches only package indexes.
"""

import asyncio
import shlex
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farm.plugins.requirement import required

with required("harbor"):
    from harbor.environments.base import BaseEnvironment, ExecResult
    from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
    from harbor.environments.definition import COMPOSE_FILE_NAME, DOCKERFILE_NAME
    from harbor.environments.tar_transfer import extract_dir_from_bytes, pack_dir_to_bytes, remote_pack_command
    from harbor.models.task.config import NetworkMode, NetworkPolicy
    from harbor.models.trial.config import ResourceMode

    from farm.plugins.local_sandboxes import (
        NO_TIMEOUT_S,
        LocalSandboxes,
        SandboxUser,
        check_archive,
        local_sandboxes,
        read_whole,
        text_of,
    )
    from sandboxes import Sandbox, SandboxLimits, SandboxSpec

OUTPUT_MAX = 16 * 1024 * 1024
DOWNLOAD_MAX = 512 * 1024 * 1024
UNPACKED_MAX = 2 * 1024 * 1024 * 1024
FILES_MAX = 100_000
"""Bounds on what a sandbox, whose content is hostile, can put into the memory and onto the disk of this machine."""
NO_HOSTS = "none"
_ARCHIVE_S = 600.0


class FarmEnvironment(BaseEnvironment):
    """A sandbox of this machine. Commands run as the user of the image, without capabilities.

    ``public_hosts``: patterns of hosts, separated by commas, that a task with a public network can reach; ``none`` for
    no network. Without it such a task is refused, because a sandbox reaches only listed hosts.
    """

    def __init__(self, *args: Any, public_hosts: str | Sequence[str] | None = None, **kwargs: Any) -> None:
        self._public_hosts = _parse_hosts(public_hosts)
        self._sandbox: Sandbox | None = None
        self._user: SandboxUser | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "farm"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_wildcard_hostnames=True,
            network_allowlist_ipv4_addresses=True,
        )

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        """Raises FileNotFoundError without an image or a Dockerfile, ValueError for a compose file or a mount."""
        if (self.environment_dir / COMPOSE_FILE_NAME).exists():
            raise ValueError(f"{self.environment_dir / COMPOSE_FILE_NAME}: the farm runs one container, no services")
        if not self.task_env_config.docker_image and not self._dockerfile.exists():
            raise FileNotFoundError(f"{self._dockerfile} is missing; add it, or set docker_image in task.toml")
        if self._host_mounts:
            raise ValueError("a sandbox mounts no directories of the host; remove --mounts")

    def validate_network_policy_support(self, network_policy: NetworkPolicy | None = None) -> None:
        policy = network_policy or self.network_policy
        if policy.network_mode == NetworkMode.PUBLIC and self._public_hosts is None:
            raise ValueError(
                "network_mode 'public': a sandbox reaches only listed hosts; pass --ek public_hosts=HOST,HOST or "
                f"--ek public_hosts={NO_HOSTS}, or set network_mode in task.toml"
            )
        super().validate_network_policy_support(network_policy)

    async def start(self, force_build: bool) -> None:
        """Build or pull the image and start the sandbox. Nothing is left if it raises. Raises SandboxError."""
        local = await local_sandboxes()
        self._sandbox = await local.runtime.create(self._spec(await self._ensure_image(local, force_build)))
        try:
            self._user = SandboxUser(self._sandbox)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def stop(self, delete: bool) -> None:
        """Remove the sandbox. No sandbox outlives the process, so ``delete`` has no effect."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.remove()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command in bash. Raises RuntimeError if it times out, and for another user than the image's."""
        sandbox = self._running
        if self._user is not None and (refusal := await self._user.refusal(self._resolve_user(user))):
            raise RuntimeError(refusal)
        done = await sandbox.exec(
            ["bash", "-c", command],
            cwd=cwd,
            env=self._merge_env(env),
            timeout_s=timeout_sec or NO_TIMEOUT_S,
            output_limit=OUTPUT_MAX,
        )
        if done.exit_code is None:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(stdout=text_of(done.stdout), stderr=text_of(done.stderr), return_code=done.exit_code)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        content, executable = await asyncio.to_thread(_read_source, Path(source_path))
        await self._running.write_file(target_path, content, executable=executable, parents=True)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a directory with modes and symlinks. Its files get the user of the sandbox as owner."""
        packed = await asyncio.to_thread(pack_dir_to_bytes, source_dir, compress=True)
        target = shlex.quote(target_dir)
        archive = _archive_path()
        try:
            await self._running.write_file(archive, packed.getvalue(), parents=True)
            await self._archive(f"mkdir -p {target} && tar -xzof {archive} -C {target}", f"upload to {target_dir}")
        finally:
            await self._running.remove_path(archive)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        target = Path(target_path)
        content = await read_whole(self._running, source_path, DOWNLOAD_MAX)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, content)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        archive = _archive_path()
        try:
            await self._archive(remote_pack_command(source_dir, archive), f"download of {source_dir}")
            packed = await read_whole(self._running, archive, DOWNLOAD_MAX)
        finally:
            await self._running.remove_path(archive)
        await asyncio.to_thread(check_archive, packed, UNPACKED_MAX, FILES_MAX)
        await asyncio.to_thread(extract_dir_from_bytes, packed, target_dir)

    @property
    def _dockerfile(self) -> Path:
        return Path(self.environment_dir, DOCKERFILE_NAME)

    @property
    def _running(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError(f"environment {self.session_id} has no sandbox; call start() first")
        return self._sandbox

    async def _ensure_image(self, local: LocalSandboxes, force_build: bool) -> str:
        image = self.task_env_config.docker_image
        if image and not (force_build and self._dockerfile.exists()):
            return await local.ensure_image(image)
        timeout_s = float(self.task_env_config.build_timeout_sec)
        return await local.ensure_build("harbor", self.environment_dir, anew=force_build, timeout_s=timeout_s)

    def _spec(self, image: str) -> SandboxSpec:
        default = SandboxLimits()
        limits = SandboxLimits(
            memory_mib=self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT) or default.memory_mib,
            cpus=self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT) or default.cpus,
            disk_mib=self._effective_storage_mb or default.disk_mib,
        )
        return SandboxSpec(
            image,
            workdir=self.task_env_config.workdir,
            env=self._startup_env(),
            limits=limits,
            egress=self._reachable_hosts(),
        )

    def _reachable_hosts(self) -> tuple[str, ...]:
        match self.network_policy.network_mode:
            case NetworkMode.ALLOWLIST:
                return tuple(self.network_policy.allowed_hosts)
            case NetworkMode.PUBLIC:
                return self._public_hosts or ()
        return ()

    async def _archive(self, command: str, work: str) -> None:
        done = await self._running.exec(["sh", "-c", command], timeout_s=_ARCHIVE_S, merge_stderr=True)
        if done.exit_code != 0:
            raise RuntimeError(f"{work} failed: {text_of(done.stdout).strip()[-500:]}")


def _parse_hosts(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    hosts = given.split(",") if isinstance(given, str) else given
    return tuple(host.strip() for host in hosts if host.strip() not in ("", NO_HOSTS))


def _read_source(source: Path) -> tuple[bytes, bool]:
    """Return the content of a file, and whether it is executable."""
    return source.read_bytes(), bool(source.stat().st_mode & 0o100)


def _archive_path() -> str:
    return f"/tmp/.harbor-{uuid.uuid4().hex}.tar.gz"

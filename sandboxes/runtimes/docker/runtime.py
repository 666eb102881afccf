"""Sandboxes as Docker containers, made and removed through the Docker Engine's API alone."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from sandboxes.cancellation import shielded
from sandboxes.cgroups.cgroups import find_hierarchies, limit_sockets, memory_group
from sandboxes.docker_engine.api import Engine, EngineError, Image
from sandboxes.errors import (
    BootError,
    ImageError,
    LossCause,
    PathError,
    RuntimeUnavailable,
    SnapshotError,
)
from sandboxes.interface import Sandbox
from sandboxes.ownership.labels import LABEL_OWNER, LABEL_SNAPSHOT, OwnerLabels, container_name, labels, of_container
from sandboxes.ownership.owner import Owner, remove_directory
from sandboxes.ownership.sandbox_record import SandboxRecord
from sandboxes.runtimes.base import ExitCause, ToolServerRuntime, ToolServerSandbox
from sandboxes.runtimes.boot_errors import check_demands
from sandboxes.runtimes.docker.exit_cause import describe, ending
from sandboxes.runtimes.docker.snapshots import SnapshotImages
from sandboxes.runtimes.isolation import (
    HOSTS,
    HOSTS_NAME,
    LACKS_PRIVATE_LAYERS,
    check_toolbox,
    container_config,
    socket_bytes,
)
from sandboxes.runtimes.oom_attribution import SETTLE_S, OomAttribution
from sandboxes.runtimes.reaper import bury_groups, reap
from sandboxes.runtimes.shared_inodes import SharedInodes
from sandboxes.runtimes.uncounted_memory.watch import UncountedMemoryWatch
from sandboxes.spec import SandboxSpec
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox, ensure_toolbox

HOST_ONLY_ID = 0x7FFFFFFD
"""Owner of a run directory once its sandbox has answered: a user that no process inside is or can become."""

SOCKET_NAME = "sock"
COPIES_OF = (None, "runc", "crun")
"""The programs under which a container's files are where the daemon looks for them; gVisor keeps changes to itself."""
HEALTH_CHECK_S = 0.25
FOREVER_S = 86_400.0


class DockerRuntime(ToolServerRuntime):
    """Makes sandboxes on this machine's Docker daemon, for one owner. Open it with ``open``."""

    def __init__(
        self, engine: Engine, owner: Owner, toolbox: Toolbox, oci_runtime: str | None, shared: SharedInodes
    ) -> None:
        super().__init__(owner)
        self.name = f"docker:{oci_runtime}" if oci_runtime else "docker"
        self._oci_runtime = oci_runtime
        self._engine = engine
        self._toolbox = toolbox
        self._shared = shared
        self._copies = SnapshotImages(engine, owner)
        self._hunger = OomAttribution(unified=find_hierarchies().unified)
        self._hoarders = UncountedMemoryWatch()
        self._origins: dict[str, Image] = {}
        """The image behind each sandbox and snapshot."""
        self._bases: dict[str, str] = {}
        """What the image of its files is called, for each snapshot and each sandbox that was started from one."""

    @classmethod
    async def open(
        cls,
        *,
        state_dir: Path,
        owner: str | None = None,
        grace_s: float = 0.0,
        docker_host: str | None = None,
        toolbox: Toolbox | None = None,
        oci_runtime: str | None = None,
    ) -> "DockerRuntime":
        """Find the daemon and the toolbox and become ``owner``. Raises RuntimeUnavailable with the remedy.

        So long after a death as ``grace_s`` says its sandboxes are left for the next ``owner`` of that name, which may
        ``adopt`` them. ``oci_runtime``: one that the daemon knows by this name; None: the daemon's own choice.
        """
        async with contextlib.AsyncExitStack() as undo:
            engine = Engine(docker_host)
            undo.push_async_callback(engine.close)
            await engine.connect()
            if oci_runtime and oci_runtime not in (known := await engine.oci_runtimes()):
                raise RuntimeUnavailable(
                    f"Docker knows no runtime {oci_runtime!r}, only {', '.join(known)}; name it in its daemon.json"
                )
            claim = Owner.claim(state_dir, owner, grace_s=grace_s)
            undo.callback(claim.release)
            if toolbox is None:
                toolbox = await asyncio.to_thread(ensure_toolbox, claim.state_dir)
            check_toolbox(toolbox)
            if claim.inherited:
                await bury_groups(claim.identity)
                claim.take_over()
            shared = SharedInodes()
            undo.pop_all()
        return cls(engine, claim, toolbox, oci_runtime, shared)

    @property
    def degraded(self) -> tuple[str, ...]:
        return (f"{LACKS_PRIVATE_LAYERS}: Docker mounts its layers itself; use the oci runtime",)

    async def digest_of(self, image: str) -> str:
        return (await self._engine.image(image)).id

    async def release_images(self) -> None:
        """A container holds its image, and nothing else does."""

    async def living(self) -> AsyncIterator[str]:
        for sandbox_id in (await self._mine()).values():
            yield sandbox_id

    async def reap(self) -> int:
        """Also removes what an earlier process of the same owner, or a failed clean-up of this one, left behind."""
        strays = await self._strays()
        await asyncio.gather(*map(self.discard, strays))
        await self._copies.remove_strays()
        return len(strays) + await reap(self._engine, self._owner.state_dir)

    async def _strays(self) -> list[str]:
        return [name for name in (await self._mine()).values() if name not in self._held]

    async def adopt(self) -> list[Sandbox]:
        await self._copies.recall()
        adopted = await super().adopt()
        await self._copies.drop_unused()
        return adopted

    async def _take_over(self, sandbox_id: str, record: SandboxRecord) -> ToolServer:
        name = container_name(sandbox_id)
        state = await self._engine.state(name)
        if state is not None and state.paused:  # the earlier process died while it made a snapshot
            await self._engine.unpause(name)
        self._origins[sandbox_id] = await self._engine.image(record.image_digest)
        if base := (await self._engine.labels(name)).get(LABEL_SNAPSHOT):
            self._copies.use(base)
            self._bases[sandbox_id] = base
        return await self._connect(sandbox_id, record.spec)

    async def close(self) -> None:
        await shielded(self._close())

    async def _close(self) -> None:
        try:
            await self.shut_all_egress()
            await self._engine.remove_all(await self._all())
            await self._copies.close()
            self._hunger.close()
            self._hoarders.close()
            self._held.clear()
            self._shared.close()
            self._owner.release()
        finally:
            await self._engine.close()

    async def _mine(self) -> dict[str, str]:
        """Container id → sandbox id, of this owner in this state directory."""
        return {container: mark.sandbox for container, mark in (await self._all()).items() if mark.sandbox}

    async def _all(self) -> dict[str, OwnerLabels]:
        """Also what an earlier process of this owner held its images with, which was another runtime."""
        found = await self._engine.containers(f"{LABEL_OWNER}={self._owner.name}")
        marks = {container.id: of_container(container) for container in found}
        return {container: mark for container, mark in marks.items() if mark and mark.owner == self._owner.identity}

    async def _boot(self, sandbox_id: str, spec: SandboxSpec, *, copied: bool) -> ToolServerSandbox:
        if not copied:
            self._origins[sandbox_id] = await self._engine.image(spec.image)
        image = self._origins[sandbox_id]
        check_demands(spec, image.env, image.workdir)
        copy = await self._engine.image(self._copies.image(self._bases[sandbox_id])) if copied else None
        run_dir = self._owner.sandbox_dir(sandbox_id)
        _make_run_dir(run_dir)
        config = container_config(
            spec,
            image_id=copy.id if copy else image.id,
            labels=labels(self._owner, sandbox=sandbox_id, snapshot=self._bases.get(sandbox_id, "")),
            toolbox=self._toolbox,
            run_dir=run_dir,
            oci_runtime=self._oci_runtime,
        )
        if copy:
            config["Env"] = _environment(image, copy, spec)
        name = container_name(sandbox_id)
        await shielded(self._create(name, config, image))
        await self._engine.start(name)
        server = await self._connect(sandbox_id, spec)
        _close_run_dir(run_dir)
        await _refuse_network(server)
        workdir = spec.workdir or image.workdir
        return ToolServerSandbox(sandbox_id, spec, image_digest=image.id, workdir=workdir, server=server, keeper=self)

    async def _copy(self, source: str, name: str, spec: SandboxSpec) -> None:
        """Of a sandbox an image is made, which is there as long as what is made of it."""
        if self._oci_runtime not in COPIES_OF:
            raise SnapshotError(f"what {self.name} writes Docker may not see, so it is not copied")
        origin = self._origins.get(source)
        if origin is None:
            raise SnapshotError(f"{source} was removed")
        if origin.volumes:
            raise SnapshotError(f"Docker keeps {', '.join(origin.volumes)} of this image apart and copies none of it")
        self._origins[name] = origin
        if source in self._snapshots:
            self._copies.use(source)
            self._bases[name] = source
        else:
            below, at_most = self._bases.get(source), spec.limits.disk_mib
            await self._copies.make(name, container_name(source), below=below, at_most_mib=at_most)
            self._bases[name] = name

    async def _drop(self, snapshot_id: str) -> None:
        self._origins.pop(snapshot_id, None)
        await self._copies.give_back(self._bases.pop(snapshot_id, ""))

    async def _create(self, name: str, config: Mapping[str, Any], image: Image) -> None:
        try:
            await self._engine.create(name, config)
        except EngineError as error:
            if error.status == 404:
                raise ImageError(f"image {image.id} was removed just now; build or pull it again") from None
            raise

    async def _connect(self, sandbox_id: str, spec: SandboxSpec) -> ToolServer:
        """The server once it has answered; gives up as soon as the container's first process has ended."""
        name, socket = container_name(sandbox_id), self._owner.sandbox_dir(sandbox_id) / SOCKET_NAME
        state = await self._engine.state(name)
        if state is None or not state.running:
            raise BootError(f"a sandbox of {spec.image} ended at once: {describe(state)}")
        if (group := memory_group(state.pid)) is not None:
            limit_sockets(group, socket_bytes(spec.limits))
            with contextlib.suppress(OSError):  # where we may not, the daemon's word has to do
                self._hunger.watch(sandbox_id, group)
            self._hoarders.watch(sandbox_id, group)
        # The caller bounds the time. Another kernel's sockets are held by a helper of it; but nothing of the image has
        # run yet that could listen.
        listener = None if self._oci_runtime else state.pid
        attempt = asyncio.create_task(ToolServer.connect(socket, expected_pid=listener, timeout_s=FOREVER_S))
        try:
            while not (await asyncio.wait({attempt}, timeout=HEALTH_CHECK_S))[0]:
                state = await self._engine.state(name)
                if state is None or not state.running:
                    raise BootError(f"a sandbox of {spec.image} ended before it answered: {describe(state)}")
            return attempt.result()
        finally:
            attempt.cancel()

    async def first_pid(self, sandbox_id: str) -> int:
        state = await self._engine.state(container_name(sandbox_id))
        if state is None or not state.running:
            raise BootError(f"sandbox {sandbox_id} ended at once: {describe(state)}")
        return state.pid

    async def discard(self, sandbox_id: str) -> None:
        """Container and run directory are gone afterwards, or ``reap`` will see to them."""
        self._held.discard(sandbox_id)
        self._hunger.forget(sandbox_id)
        self._hoarders.forget(sandbox_id)
        try:
            await self._engine.remove(container_name(sandbox_id))
        finally:
            self._origins.pop(sandbox_id, None)
            await self._copies.give_back(self._bases.pop(sandbox_id, ""))
        remove_directory(self._owner.sandbox_dir(sandbox_id))
        self._owner.forget_record(sandbox_id)

    def integrity_error(self, sandbox_id: str) -> str:
        return self._hunger.by_others(sandbox_id)

    async def exit_cause(self, sandbox_id: str) -> ExitCause:
        if reason := self._hoarders.reason(sandbox_id):
            return ExitCause(reason, LossCause.MEMORY)
        if doubt := self.integrity_error(sandbox_id):
            return ExitCause(doubt, LossCause.OUTSIDE)
        since = time.monotonic() - SETTLE_S
        return await ending(
            self._engine, container_name(sandbox_id), lambda: self._hunger.reached_limit(sandbox_id, since)
        )


def _environment(image: Image, copy: Image, spec: SandboxSpec) -> list[str]:
    """As if the container were made of ``image``: what else stands in ``copy`` was the copied sandbox's own.

    A name without a value takes the variable away.
    """
    wanted = {**image.env, **spec.environment}
    return [f"{name}={value}" for name, value in wanted.items()] + sorted(copy.env.keys() - wanted.keys())


async def _refuse_network(server: ToolServer) -> None:
    """That no route leads out is what all else relies on, so it is looked at rather than believed."""
    v4, v6 = await _routes(server, "route"), await _routes(server, "ipv6_route")
    ways = {line.split()[0] for line in v4[1:]} | {line.split()[-1] for line in v6}
    if out := sorted(ways - {"lo"}):
        raise RuntimeUnavailable(
            f"Docker gave a sandbox a network ({', '.join(out)}); use Docker Engine 20.10 or later"
        )


async def _routes(server: ToolServer, table: str) -> list[str]:
    try:
        return (await server.read_file(f"/proc/net/{table}")).decode("ascii").splitlines()
    except PathError:  # a kernel without that protocol
        return []


def _make_run_dir(run_dir: Path) -> None:
    """Open to the sandbox's first process, whoever it is: nothing of the image has run yet."""
    run_dir.mkdir()
    run_dir.chmod(0o777)
    hosts = run_dir / HOSTS_NAME
    hosts.write_text(HOSTS)
    hosts.chmod(0o444)
    if os.geteuid() == 0:
        os.chown(hosts, HOST_ONLY_ID, HOST_ONLY_ID)


def _close_run_dir(run_dir: Path) -> None:
    """From now on nothing inside can put another socket here, or connect to this one.

    Root inside is root outside as far as files go, and without capabilities it is bound by their modes; so they belong
    to nobody inside. Without root here the directory is the farm's own user's and only its mode changes.
    """
    if os.geteuid() == 0:
        for path, mode in ((run_dir / SOCKET_NAME, 0o600), (run_dir, 0o555)):
            os.chown(path, HOST_ONLY_ID, HOST_ONLY_ID, follow_symlinks=False)
            path.chmod(mode)
    else:
        run_dir.chmod(0o555)

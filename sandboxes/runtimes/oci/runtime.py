"""Sandboxes started by an OCI runtime on the layers of Docker's images, with no daemon on the way."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from sandboxes.errors import BootError, GoneBy, RuntimeUnavailable, SandboxError
from sandboxes.owner import Owner
from sandboxes.reaper import reap
from sandboxes.runtimes.container import HOSTNAME, HOSTS, check_spec
from sandboxes.runtimes.engine import Engine
from sandboxes.runtimes.oci import mounts, starter
from sandboxes.runtimes.oci.bundle import config
from sandboxes.runtimes.oci.cgroups import Cgroups, find_hierarchies, group_of
from sandboxes.runtimes.oci.disk import Disk, open_disk
from sandboxes.runtimes.oci.images import MountedImage, MountedImages
from sandboxes.runtimes.oci.layers import FIRST_ID, open_user_namespace
from sandboxes.runtimes.oci.process import FirstProcess
from sandboxes.runtimes.oci.programs import Program, find_programs
from sandboxes.runtimes.oci.starter import Starter
from sandboxes.sandbox import Sandbox
from sandboxes.served import Ending, ServedSandbox
from sandboxes.server import ToolServer
from sandboxes.spec import SandboxSpec
from sandboxes.toolbox import Toolbox, ensure_toolbox
from sandboxes.uninterrupted import uninterrupted

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SOCKET, PID_FILE, COMPLAINTS = "sock", "pid", "err"
UPPER, WORK = "upper", "work"
COMPLAINT_BYTES = 2000
STOPPING_S = 3.0
STARTS_PER_CORE = 2
"""More at once makes each slower and none sooner."""
FOREVER_S = 86_400.0
KILLED = 128 + 9

log = logging.getLogger(__name__)


class OciRuntime:
    """Makes sandboxes for one owner. Open it with ``open``; needs root."""

    name = "oci"

    def __init__(
        self,
        *,
        engine: Engine,
        owner: Owner,
        disk: Disk,
        cgroups: Cgroups,
        children: Starter,
        program: Program,
        user_namespace: int | None,
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._disk = disk
        self._cgroups = cgroups
        self._starter = children
        self._program = program
        self._mapped = user_namespace is not None
        self._images = MountedImages(
            engine, children, state_dir=owner.state_dir, owner=owner.name, user_namespace=user_namespace
        )
        self._held: set[str] = set()
        self._taken: dict[str, str] = {}
        self._first: dict[str, FirstProcess] = {}
        self._starts = asyncio.Semaphore(STARTS_PER_CORE * (os.cpu_count() or 1))

    @classmethod
    async def open(
        cls,
        *,
        state_dir: Path,
        owner: str | None = None,
        docker_host: str | None = None,
        toolbox: Toolbox | None = None,
    ) -> "OciRuntime":
        """Become ``owner`` and find out what this machine can. Raises RuntimeUnavailable with the remedy."""
        if os.geteuid() != 0:
            raise RuntimeUnavailable("the oci runtime needs root")
        hierarchies = find_hierarchies()
        if not hierarchies.places:
            raise RuntimeUnavailable("the oci runtime needs control groups; mount them at /sys/fs/cgroup")
        async with contextlib.AsyncExitStack() as undo:
            engine = Engine(docker_host)
            undo.push_async_callback(engine.close)
            await engine.connect()
            claim = Owner.claim(state_dir, owner)
            undo.callback(claim.release)
            if toolbox is None:
                toolbox = await asyncio.to_thread(ensure_toolbox, claim.state_dir)
            home = claim.sandbox_dir(".")
            disk, unlimited = await asyncio.to_thread(open_disk, home)
            undo.callback(disk.close)
            if unlimited:
                log.warning("%s", unlimited)
            user_namespace = await asyncio.to_thread(open_user_namespace, toolbox.starter)
            undo.callback(os.close, user_namespace)
            children = await _launch(toolbox, home, disk, hierarchies.hidden)
            undo.push_async_callback(children.close)
            program = next(find_programs(), None)
            if program is None:
                raise RuntimeUnavailable("the oci runtime needs crun or runc; as root: apt-get install crun")
            undo.pop_all()
        return cls(
            engine=engine,
            owner=claim,
            disk=disk,
            cgroups=Cgroups(hierarchies, group_of(claim.state_dir, claim.name)),
            children=children,
            program=program,
            user_namespace=user_namespace,
        )

    async def create(self, spec: SandboxSpec, *, boot_timeout_s: float = 60.0) -> Sandbox:
        """The time-out begins with this sandbox's turn: some ``STARTS_PER_CORE`` start at the same time."""
        check_spec(spec)
        async with self._starts:
            sandbox_id = secrets.token_hex(6)
            self._held.add(sandbox_id)
            try:
                async with asyncio.timeout(boot_timeout_s):
                    return await self._boot(sandbox_id, spec)
            except BaseException as error:
                await uninterrupted(self._discard_quietly(sandbox_id))
                if isinstance(error, TimeoutError):
                    raise BootError(f"a sandbox of {spec.image} did not answer in {boot_timeout_s:g} s") from None
                raise

    @contextlib.asynccontextmanager
    async def scope(self, spec: SandboxSpec, *, boot_timeout_s: float = 60.0) -> AsyncIterator[Sandbox]:
        sandbox = await self.create(spec, boot_timeout_s=boot_timeout_s)
        try:
            yield sandbox
        finally:
            await sandbox.remove()

    async def living(self) -> AsyncIterator[str]:
        for sandbox_id in self._cgroups.names():
            yield sandbox_id

    async def reap(self) -> int:
        """Also removes what an earlier process of the same owner, or a failed clean-up of this one, left behind."""
        await self._images.sweep()
        strays = self._cgroups.names() - self._held
        for sandbox_id in strays:
            await self.discard(sandbox_id)
        return len(strays) + await reap(self._engine, self._owner.state_dir)

    async def close(self) -> None:
        await uninterrupted(self._close())

    async def _close(self) -> None:
        try:
            await asyncio.gather(*map(self.discard, self._held | self._cgroups.names()))
            await self._images.close()
            await self._starter.close()
            self._disk.close()
            self._cgroups.remove_group()
            await asyncio.to_thread(self._owner.release)
        finally:
            await self._engine.close()

    async def _boot(self, sandbox_id: str, spec: SandboxSpec) -> Sandbox:
        image = await self._images.take(spec.image)
        self._taken[sandbox_id] = image.id
        workdir = spec.workdir or image.workdir
        self._lay_out(sandbox_id, spec, image, workdir)
        bundle = starter.DISK / sandbox_id
        options = f"lowerdir={':'.join(image.lower)},upperdir={bundle / UPPER},workdir={bundle / WORK},volatile"
        place = self._disk.path / sandbox_id
        with _listen(place / SOCKET) as listener:
            status = await self._starter.start(
                sandbox_id, options, self._program.command(sandbox_id, PID_FILE), listener
            )
        if status:
            raise BootError(f"a sandbox of {spec.image} did not start: {_complaint(place, status)}")
        try:
            first = FirstProcess(int((place / PID_FILE).read_text()), self._starter)
        except ProcessLookupError:
            raise BootError(f"a sandbox of {spec.image} ended at once") from None
        self._first[sandbox_id] = first
        server = await self._connect(place / SOCKET, first, spec.image)
        return ServedSandbox(sandbox_id, spec, image_digest=image.id, workdir=workdir, server=server, keeper=self)

    def _lay_out(self, sandbox_id: str, spec: SandboxSpec, image: MountedImage, workdir: str) -> None:
        """Its directory: the OCI bundle, and the layer that takes what it writes."""
        self._disk.make(sandbox_id, spec.limits.disk_mib)
        place = self._disk.path / sandbox_id
        for name in (UPPER, WORK):
            (place / name).mkdir(mode=0o755)
        if self._mapped:
            os.chown(place / UPPER, FIRST_ID, FIRST_ID)
        described = config(
            env={"PATH": DEFAULT_PATH, "HOSTNAME": HOSTNAME, **image.env, **spec.env},
            user=image.user,
            workdir=workdir,
            limits=spec.limits,
            cgroup=self._cgroups.path_in_config(sandbox_id),
            swap=self._cgroups.limits_swap,
            user_namespace=self._mapped,
            compiled_filter=self._program.compiled_filter,
        )
        (place / "config.json").write_text(json.dumps(described))

    async def _connect(self, path: Path, first: FirstProcess, image: str) -> ToolServer:
        """The server once it has answered; gives up as soon as the first process has ended."""
        # The caller bounds the time. Who made the socket listens, by its peer's word: this process.
        attempt = asyncio.create_task(ToolServer.connect(path, expected_pid=os.getpid(), timeout_s=FOREVER_S))
        end = asyncio.create_task(first.until_ended(FOREVER_S))
        try:
            await asyncio.wait({attempt, end}, return_when=asyncio.FIRST_COMPLETED)
            if attempt.done():
                return attempt.result()
            raise BootError(f"a sandbox of {image} ended before it answered, with status {first.status}")
        finally:
            attempt.cancel()
            end.cancel()

    async def discard(self, sandbox_id: str) -> None:
        first = self._first.pop(sandbox_id, None)
        if first is not None:
            first.kill()
            await first.until_ended(STOPPING_S)
            first.close()
        await self._cgroups.remove(sandbox_id)
        if self._disk.bounded:
            self._disk.remove(sandbox_id)
        else:
            await asyncio.to_thread(self._disk.remove, sandbox_id)
        if (image_id := self._taken.pop(sandbox_id, None)) is not None:
            self._images.give_back(image_id)
        self._held.discard(sandbox_id)

    async def _discard_quietly(self, sandbox_id: str) -> None:
        """For a boot that has failed already: that is the error to tell."""
        try:
            await self.discard(sandbox_id)
        except (SandboxError, OSError) as error:
            log.warning("sandbox %s stays for the reaper: %s", sandbox_id, error)

    async def ending_of(self, sandbox_id: str) -> Ending:
        first = self._first.get(sandbox_id)
        if first is None:
            return Ending("it was removed", GoneBy.OUTSIDE)
        if not await first.until_ended(STOPPING_S):
            if self._cgroups.is_frozen(sandbox_id):
                return Ending("it is frozen", GoneBy.OUTSIDE)
            return Ending("its first process lives", GoneBy.INSIDE)
        if first.status == KILLED and self._cgroups.killed_for_memory(sandbox_id):
            return Ending("it ran out of memory", GoneBy.MEMORY)
        by = GoneBy.OUTSIDE if first.status in (None, KILLED) else GoneBy.INSIDE
        return Ending(f"its first process ended with status {first.status}", by)


async def _launch(toolbox: Toolbox, home: Path, disk: Disk, hidden: tuple[Path, ...]) -> Starter:
    hosts = home / "hosts"
    hosts.write_text(HOSTS)
    try:
        with (
            mounts.closing(disk.tree()) as disk_tree,
            mounts.closing(mounts.clone(toolbox.path, read_only=True)) as toolbox_tree,
            mounts.closing(mounts.clone(hosts, read_only=True)) as hosts_tree,
        ):
            return await Starter.launch(
                toolbox.starter, disk=disk_tree, toolbox=toolbox_tree, hosts=hosts_tree, hidden=hidden
            )
    except OSError as error:
        raise RuntimeUnavailable(f"mounts of its own: {error.strerror}; the oci runtime needs Linux 5.19") from None


def _listen(path: Path) -> socket.socket:
    """Made by us and inherited by the first process, so that no path inside leads to it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(path))
        listener.listen(64)
    except OSError:
        listener.close()
        raise
    return listener


def _complaint(place: Path, status: int) -> str:
    with contextlib.suppress(OSError):
        lines = (place / COMPLAINTS).read_bytes()[-COMPLAINT_BYTES:].decode(errors="replace").split()
        if lines:
            return " ".join(lines)
    return f"exit status {status}"

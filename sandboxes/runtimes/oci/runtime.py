"""Sandboxes started by an OCI runtime on the layers of Docker's images, with no daemon on the way."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sandboxes.cancellation import shielded
from sandboxes.cgroups.cgroups import Cgroups
from sandboxes.cgroups.move_lock_warmer import MoveLockWarmer
from sandboxes.docker_engine.api import Engine
from sandboxes.errors import BootError, RuntimeUnavailable, SandboxError, SnapshotError
from sandboxes.host.limits import Footprint, oci_footprint
from sandboxes.interface import Sandbox
from sandboxes.linux.small_files import read_small_file
from sandboxes.ownership.owner import Owner, group_of
from sandboxes.ownership.sandbox_record import SandboxRecord
from sandboxes.runtimes.base import ExitCause, ToolServerRuntime, ToolServerSandbox
from sandboxes.runtimes.boot_errors import check_demands
from sandboxes.runtimes.docker.exit_cause import STOPPING_S
from sandboxes.runtimes.isolation import HOSTNAME, LACKS_PRIVATE_LAYERS, socket_bytes
from sandboxes.runtimes.oci import starter
from sandboxes.runtimes.oci.bundle import config, rlimits
from sandboxes.runtimes.oci.exit_tracker import ExitTracker
from sandboxes.runtimes.oci.host import OciHost
from sandboxes.runtimes.oci.images.image_mounts import MountedImage, MountedImages
from sandboxes.runtimes.oci.images.image_user import ImageUser
from sandboxes.runtimes.oci.images.packed_layers import PackedLayers, to_mount
from sandboxes.runtimes.oci.init_process import InitProcess
from sandboxes.runtimes.oci.oci_programs import PROGRAMS, OciProgram, find_programs
from sandboxes.runtimes.oci.starter_supervisor import StarterSupervisor, run_at_each_start
from sandboxes.runtimes.oci.storage.sandbox_dir import (
    PID_FILE,
    SOCKET,
    complaint,
    overlay_options,
    socket_of_ours,
)
from sandboxes.runtimes.oci.storage.sandbox_files import SandboxFiles
from sandboxes.runtimes.reaper import bury_containers, reap
from sandboxes.runtimes.shared_inodes import SharedInodes
from sandboxes.spec import SandboxLimits, SandboxSpec
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox, ensure_toolbox

DEFAULTS = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": HOSTNAME}
DISK_SHARES = 64
TRIAL, TRIAL_S, TRIALS = "trial", 10.0, 3


class OciRuntime(ToolServerRuntime):
    """Makes sandboxes for one owner. Open it with ``open``; needs root."""

    name = "oci"

    def __init__(
        self,
        ground: OciHost,
        starting: StarterSupervisor,
        lacks: Sequence[str],
        *,
        mapped: bool,
    ) -> None:
        super().__init__(ground.owner)
        self._ground = ground
        self._cgroups = Cgroups(ground.seen_by(starting.program), group_of(self._owner.identity))
        self._moves = MoveLockWarmer(ground.hierarchies)
        self._files = SandboxFiles(ground, mapped=mapped)
        self._ends = ExitTracker(self._cgroups)
        self._starting = starting
        self._mending = asyncio.Lock()
        self._mapped = mapped
        self._images = MountedImages(ground.engine, self._owner)
        self._taken: dict[str, MountedImage] = {}
        self._packed: PackedLayers | None = None
        self._lacks = (*ground.degraded, *lacks)

    @property
    def degraded(self) -> tuple[str, ...]:
        """What sandboxes here go without, a line each: for whoever set the machine up."""
        return (*self._lacks, *self._starting.lacks)

    @property
    def describes(self) -> str:
        """What it starts sandboxes with."""
        return f"{self._starting.program.path.name}, {'with' if self._mapped else 'without'} user namespaces"

    @property
    def footprint(self) -> Footprint:
        """What a sandbox takes of the host."""
        return oci_footprint(mapped=self._mapped)

    @classmethod
    async def open(
        cls,
        *,
        state_dir: Path,
        owner: str | None = None,
        grace_s: float = 0.0,
        docker_host: str | None = None,
        toolbox: Toolbox | None = None,
        programs: Sequence[str] = PROGRAMS,
        places: int = DISK_SHARES,
    ) -> "OciRuntime":
        """Become ``owner``, and start a sandbox of nothing with one of ``programs`` after the other to see what works.

        So long after a death as ``grace_s`` says its sandboxes are left for the next ``owner`` of that name, which may
        ``adopt`` them. ``places``: that many sandboxes share its disk alike. Raises RuntimeUnavailable.
        """
        if os.geteuid() != 0:
            raise RuntimeUnavailable("the oci runtime needs root")
        undo = contextlib.AsyncExitStack()
        try:
            engine = Engine(docker_host)
            undo.push_async_callback(engine.close)
            await engine.connect()
            claim = Owner.claim(state_dir, owner, grace_s=grace_s)
            undo.callback(claim.release)
            undo.callback(SharedInodes().close)
            if toolbox is None:
                toolbox = await asyncio.to_thread(ensure_toolbox, claim.state_dir)
            ground = await OciHost.prepare(undo, engine, claim, toolbox, places)
            runtime = await cls._first_that_works(ground, list(find_programs(programs)))
            if claim.inherited:
                await bury_containers(engine, claim.identity)
                claim.take_over()
            return runtime
        except BaseException:
            await undo.aclose()
            raise

    @classmethod
    async def _first_that_works(cls, ground: OciHost, programs: Sequence[OciProgram]) -> "OciRuntime":
        lacks: list[str] = []
        for mapped in (True, False):
            slower: tuple[str, ...] = ()
            for program in programs:
                try:
                    starting = StarterSupervisor(ground, program, await ground.launch(program), slower)
                except RuntimeUnavailable as error:
                    if not program.loaded_once:
                        raise
                    slower = (run_at_each_start(program, str(error)),)
                    continue
                runtime = cls(ground, starting, lacks, mapped=mapped)
                try:
                    await runtime._try()
                except SandboxError as error:
                    slower = (run_at_each_start(program, str(error)),) if program.loaded_once else ()
                    if not program.loaded_once:
                        lacks.append(f"{runtime.describes}: {error}")
                    await starting.starter.close()
                    await runtime._cgroups.remove_group()
                except BaseException:
                    await starting.starter.close()
                    await runtime._cgroups.remove_group()
                    raise
                else:
                    await runtime._pack_layers()
                    ground.undo.push_async_callback(runtime._cgroups.remove_group)
                    ground.undo.push_async_callback(runtime._close_starter)
                    return runtime
        raise RuntimeUnavailable(
            "; ".join(lacks) or "the oci runtime needs crun or runc; as root: apt-get install crun"
        )

    async def _pack_layers(self) -> None:
        """Be ready for sandboxes with private layers, or say why there are none."""
        try:
            self._packed = await PackedLayers.open(self._owner.state_dir)
            await self._try(private_layers=True)
        except SandboxError as error:
            self._packed = None
            self._lacks = (*self._lacks, f"{LACKS_PRIVATE_LAYERS}: {error}")

    async def _try(self, *, private_layers: bool = False) -> None:
        """A sandbox that holds nothing must come up, and see no network. Raises SandboxError."""
        spec = SandboxSpec("nothing", limits=SandboxLimits(memory_mib=64, disk_mib=64), private_layers=private_layers)
        for number in range(TRIALS):  # a machine that is busy just now says nothing of the program
            with contextlib.suppress(TimeoutError):
                await self._try_once(f"{TRIAL}-{number}", spec)
                return
        raise BootError(f"a sandbox of it did not answer in {TRIAL_S:g} s, {TRIALS} times")

    async def _try_once(self, name: str, spec: SandboxSpec) -> None:
        empty = self._owner.sandbox_dir("nothing")
        empty.mkdir(exist_ok=True)
        self._held.add(name)
        try:
            await self.discard(name)  # of one that died here
            self._held.add(name)
            async with asyncio.timeout(TRIAL_S), self._cgroups.starting(name):
                box = await self._start(name, spec, MountedImage("", "/", {}, ImageUser(), (empty,), ""), copied=False)
                routes = await box.read_file("/proc/net/route")
                if len(routes.splitlines()) > 1:
                    raise BootError("a sandbox of it has a network")
        finally:
            await shielded(self.discard(name))
            await self._cgroups.remove(name)  # at once, for the name comes again

    async def digest_of(self, image: str) -> str:
        return (await self._ground.engine.image(image)).id

    async def release_images(self) -> None:
        await self._images.sweep(idle_s=0.0)

    async def living(self) -> AsyncIterator[str]:
        for sandbox_id in self._cgroups.names():
            yield sandbox_id

    async def reap(self) -> int:
        """Also removes what an earlier process of the same owner, or a failed clean-up of this one, left behind."""
        await self._images.sweep()
        await self._images.drop_strays()
        if self._packed is not None:
            await self._packed.sweep()
        self._starting.starter.bury()
        strays = await self._strays()
        for sandbox_id in strays:
            await self.discard(sandbox_id)
        return len(strays) + await reap(self._ground.engine, self._owner.state_dir)

    async def _strays(self) -> set[str]:
        return (self._cgroups.names() | self._files.names()) - self._held - self._snapshots.keys()

    async def adopt(self) -> list[Sandbox]:
        adopted = await super().adopt()
        await self._images.drop_strays()
        return adopted

    async def _take_over(self, sandbox_id: str, record: SandboxRecord) -> ToolServer:
        place = self._files.place(sandbox_id)
        first = InitProcess(int(read_small_file(place / PID_FILE)), self._starting.starter)
        if not self._cgroups.holds(sandbox_id, first.pid):
            first.close()  # another has the number now, which nobody may kill for it
            raise BootError("its first process has ended")
        self._ends.watch(sandbox_id, first)
        self._files.take_over(sandbox_id)
        self._cgroups.thaw(sandbox_id)  # its owner may have died while it copied it
        self._taken[sandbox_id] = await self._images.take(record.image_digest)
        if record.spec.to_fork:
            self._files.write_early(sandbox_id)
        return await first.server(place / SOCKET, record.spec.image, listener=None)

    async def close(self) -> None:
        await shielded(self._close())

    async def _close(self) -> None:
        try:
            await self.shut_all_egress()
            await self._files.close()
            await asyncio.gather(*map(self.discard, self._held | self._cgroups.names()))
            await self._images.close()
            if self._packed is not None:
                await self._packed.close()
            await self._moves.wait()
            self._ends.close()
        finally:
            await self._ground.undo.aclose()

    async def _boot(self, sandbox_id: str, spec: SandboxSpec, *, copied: bool) -> ToolServerSandbox:
        self._moves.warm()
        await self._mend()
        if not copied:
            image = self._taken[sandbox_id] = await self._images.take(spec.image)
            check_demands(spec, image.env, image.workdir)
        async with self._cgroups.starting(sandbox_id):
            return await self._start(sandbox_id, spec, self._taken[sandbox_id], copied=copied)

    async def _mend(self) -> None:
        """A disk that failed is given up with all that live on it. A starter that was killed is started again, and a
        program that starts nothing any more gives way to the one that can. Raises RuntimeUnavailable."""
        async with self._mending:
            if failure := self._files.failure():
                self._ends.lose_all(failure)
                await self._files.renew()
            if failure or self._starting.starter.gone:
                await self._starting.renew()
            if self._starting.doubtful:
                try:
                    await self._try()
                    self._starting.trust()
                except SandboxError as error:
                    await self._starting.fall_back(str(error))
            await self._files.have_room()

    def integrity_error(self, sandbox_id: str) -> str:
        image = self._taken.get(sandbox_id)
        removed = "" if image is None or image.is_whole() else f"the daemon removed layers of {image.id}"
        return self._files.failure() or removed or self._ends.integrity_error(sandbox_id)

    async def _close_starter(self) -> None:
        await self._files.settled()
        await self._starting.starter.close()

    async def _start(
        self, sandbox_id: str, spec: SandboxSpec, image: MountedImage, *, copied: bool
    ) -> ToolServerSandbox:
        place = self._files.place(sandbox_id)
        with socket_of_ours() as listener:
            first_id = await self._files.lay_out(
                sandbox_id,
                spec.limits.disk_mib,
                partial(self._described, sandbox_id, spec, image),
                listener,
                copied=copied,
            )
            packed = self._packed if spec.private_layers else None
            async with to_mount(self._ground.layer, image.layers, packed) as (above, layers):
                status = await self._starting.counted(
                    self._starting.starter.start(
                        sandbox_id,
                        first_id=first_id,
                        rlimits=rlimits(spec.limits),
                        options=overlay_options(starter.DISK / sandbox_id),
                        above=above,
                        layers=layers,
                        command=self._starting.program.command(sandbox_id, PID_FILE),
                        listener=listener,
                    ),
                    place / PID_FILE,
                )
        if status:
            raise BootError(f"a sandbox of {spec.image} did not start: {complaint(place, status)}")
        try:
            first = InitProcess(int(read_small_file(place / PID_FILE)), self._starting.starter)
        except (ProcessLookupError, ValueError):  # the disk may have been full
            raise BootError(f"a sandbox of {spec.image} ended at once") from None
        self._ends.watch(sandbox_id, first)
        self._cgroups.limit_sockets(sandbox_id, socket_bytes(spec.limits))
        if spec.to_fork:
            self._files.write_early(sandbox_id)
        # Who made the socket listens, by its peer's word: this process.
        server = await first.server(place / SOCKET, spec.image, listener=os.getpid())
        workdir = spec.workdir or image.workdir
        return ToolServerSandbox(sandbox_id, spec, image_digest=image.id, workdir=workdir, server=server, keeper=self)

    def _described(self, sandbox_id: str, spec: SandboxSpec, image: MountedImage, first_id: int) -> dict[str, Any]:
        """The sandbox in words of the OCI runtime."""
        return config(
            env={**DEFAULTS, "HOME": image.user.home, **image.env, **spec.environment},
            user=image.user,
            workdir=image.workdir,
            limits=spec.limits,
            cgroup=self._cgroups.path_in_config(sandbox_id),
            swap=self._cgroups.limits_swap,
            first_id=first_id,
            program=self._starting.program,
        )

    async def _copy(self, source: str, name: str, spec: SandboxSpec) -> None:
        """A living sandbox stands still meanwhile."""
        await self._mend()
        image = self._taken.get(source)
        if image is None:
            raise SnapshotError(f"{source} was removed")
        self._taken[name] = await self._images.take(image.id)
        still = self._cgroups.frozen(source) if source in self._held else contextlib.nullcontext()
        try:
            async with still:
                copied = self._files.copy(source, name, spec.limits.disk_mib)
                await shielded(self._moves.warm_during(copied))
        except OSError as error:
            raise SnapshotError(f"{source} cannot be copied: {error.strerror}") from None
        if source in self._held:
            self._files.write_early(source)

    async def _drop(self, snapshot_id: str) -> None:
        await self._remove_files(snapshot_id)

    async def _remove_files(self, name: str) -> None:
        """Of a sandbox or a snapshot; its hold on the image with them."""
        await self._files.remove(name)
        if (image := self._taken.pop(name, None)) is not None:
            self._images.give_back(image)

    async def first_pid(self, sandbox_id: str) -> int:
        return self._ends.first_pid(sandbox_id)

    async def discard(self, sandbox_id: str) -> None:
        try:
            await self._starting.starter.settle(sandbox_id, STOPPING_S)
            await self._ends.kill(sandbox_id)
            await self._cgroups.remove_later(sandbox_id)
            await self._remove_files(sandbox_id)
            self._owner.forget_record(sandbox_id)
        finally:
            self._held.discard(sandbox_id)

    async def exit_cause(self, sandbox_id: str) -> ExitCause:
        return await self._ends.cause_of(sandbox_id, self.integrity_error(sandbox_id))

"""Sandboxes whose calls a tool server answers, and what the runtimes that make them have in common."""

import asyncio
import contextlib
import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sandboxes.cancellation import shielded
from sandboxes.egress import AllowList, EgressLog, EgressProxy, Grants, check_listening, listen_inside
from sandboxes.errors import (
    LossCause,
    PathError,
    ProtocolError,
    SandboxError,
    SandboxGone,
    SpecError,
)
from sandboxes.images.last_used import ImageUses
from sandboxes.interface import Sandbox
from sandboxes.ownership.owner import Owner
from sandboxes.ownership.sandbox_record import SandboxRecord
from sandboxes.runtimes import login_env
from sandboxes.runtimes.boot_errors import why_not_booted
from sandboxes.runtimes.boot_limiter import AdaptiveLimit, BootLimiter
from sandboxes.snapshot import Snapshot
from sandboxes.spec import SandboxSpec, check_spec
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.sandbox_calls import SandboxCalls

ADOPT_S = 10.0
LOGINS_KEPT = 256

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExitCause:
    """What became of a sandbox whose tool server no longer answers."""

    reason: str
    by: LossCause


class ToolServerRuntime(ABC):
    """Boots some sandboxes at a time, and leaves nothing of one that does not come up. Uses of images are noted."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._uses = ImageUses.of(owner.state_dir)
        self._held: set[str] = set()
        self._snapshots: dict[str, Snapshot] = {}
        self._proxies: dict[str, EgressProxy] = {}
        self.granted = Grants()
        """What the operator lets sandboxes reach beside the internet."""
        self._logins: dict[tuple[str, tuple[tuple[str, str], ...]], Mapping[str, str]] = {}
        self._gate = BootLimiter(AdaptiveLimit(len(os.sched_getaffinity(0))))

    @property
    def degraded(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    async def _boot(self, sandbox_id: str, spec: SandboxSpec, *, copied: bool) -> "ToolServerSandbox":
        """A sandbox that has answered once, within what time the caller leaves.

        ``copied``: on the files that ``_copy`` has put under its id.
        """

    @abstractmethod
    async def _copy(self, source: str, name: str, spec: SandboxSpec) -> None:
        """Put the files of a sandbox or a snapshot under the id of another, which is of ``spec``.

        Raises SnapshotError.
        """

    @abstractmethod
    async def _drop(self, snapshot_id: str) -> None:
        """Also of a copy that failed."""

    @abstractmethod
    async def _strays(self) -> Collection[str]:
        """Sandboxes of this owner that it does not hold: an earlier process left them, or a clean-up failed."""

    @abstractmethod
    async def _take_over(self, sandbox_id: str, record: SandboxRecord) -> ToolServer:
        """The server of a sandbox that an earlier process left, once it has answered, within what time the caller
        leaves. Raises SandboxError, OSError or ValueError."""

    @abstractmethod
    async def first_pid(self, sandbox_id: str) -> int:
        """Its first process, as this machine numbers it."""

    @abstractmethod
    async def discard(self, sandbox_id: str) -> None:
        """Nothing of it is left afterwards, or the reaper will see to it."""

    def integrity_error(self, sandbox_id: str) -> str:
        """What it stands on and has broken, so that no answer of it can be believed; "" where nothing has."""
        return ""

    @abstractmethod
    async def exit_cause(self, sandbox_id: str) -> ExitCause:
        """Never raises."""

    async def create(self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0) -> Sandbox:
        """The time-out begins with this sandbox's turn; ``boot_limiter`` says how many boot at the same time."""
        check_spec(spec)
        if base is None:
            return await self._start_one(spec, None, boot_timeout_s)
        if self._snapshots.get(base.id) is not base:
            raise SpecError(f"snapshot {base.id} was removed, or is another runtime's")
        if spec.image != base.spec.image:
            raise SpecError(f"a snapshot of {base.spec.image} cannot be started as {spec.image}")
        return await self._start_one(spec, base.id, boot_timeout_s)

    async def fork(self, sandbox: "ToolServerSandbox", boot_timeout_s: float) -> Sandbox:
        made = await self._start_one(sandbox.spec, sandbox.id, boot_timeout_s)
        try:
            if sandbox.id not in self._proxies:
                await made.shut_egress()
        except BaseException:
            await made.remove()
            raise
        return made

    async def snapshot(self, sandbox: "ToolServerSandbox") -> Snapshot:
        snapshot = Snapshot(secrets.token_hex(6), sandbox.spec, sandbox.image_digest, self._forget)
        self._snapshots[snapshot.id] = snapshot
        try:
            await self._copy(sandbox.id, snapshot.id, sandbox.spec)
        except BaseException:
            await snapshot.remove()
            raise
        return snapshot

    async def _forget(self, snapshot_id: str) -> None:
        if self._snapshots.pop(snapshot_id, None) is not None:
            await self._drop(snapshot_id)

    async def _start_one(self, spec: SandboxSpec, base: str | None, boot_timeout_s: float) -> "ToolServerSandbox":
        """``base``: the snapshot, or the living sandbox, whose files it begins with."""
        sandbox_id = secrets.token_hex(6)
        self._held.add(sandbox_id)
        try:
            if base is not None:  # without a turn: how long a copy takes says nothing of how many may boot
                await self._copy(base, sandbox_id, spec)
            async with self._gate.turn(), asyncio.timeout(boot_timeout_s):
                sandbox = await self._boot(sandbox_id, spec, copied=base is not None)
                self.note_use(spec.image)
                await sandbox.enter_workdir()
                await self._log_in(sandbox, pristine=base is None)
                if spec.egress:
                    await self._open_egress(sandbox)
                self.keep_record(sandbox)
                return sandbox
        except BaseException as error:
            await shielded(self._discard_quietly(sandbox_id))
            raise why_not_booted(error, spec, boot_timeout_s, copied=base is not None) from None

    async def _log_in(self, sandbox: "ToolServerSandbox", *, pristine: bool) -> None:
        """Only what was never anybody else's may say what an image's logins add: it holds for others too."""
        key = sandbox.image_digest, tuple(sorted(sandbox.spec.environment.items()))
        found = self._logins.get(key)
        if found is None:
            found = await login_env.environment(sandbox)
            if pristine:
                self._logins[key] = found
                if len(self._logins) > LOGINS_KEPT:
                    del self._logins[next(iter(self._logins))]
        await sandbox.log_in(found)

    @contextlib.asynccontextmanager
    async def scope(
        self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0
    ) -> AsyncIterator[Sandbox]:
        sandbox = await self.create(spec, base=base, boot_timeout_s=boot_timeout_s)
        try:
            yield sandbox
        finally:
            await sandbox.remove()

    def note_use(self, image: str) -> None:
        self._uses.note(image)

    async def adopt(self) -> list[Sandbox]:
        found = await asyncio.gather(*map(self._adopt_one, await self._strays()))
        return [sandbox for sandbox in found if sandbox is not None]

    async def _adopt_one(self, sandbox_id: str) -> "ToolServerSandbox | None":
        self._held.add(sandbox_id)
        try:
            async with asyncio.timeout(ADOPT_S):
                record = SandboxRecord.parse(self._owner.record(sandbox_id))
                sandbox = ToolServerSandbox(
                    sandbox_id,
                    record.spec,
                    image_digest=record.image_digest,
                    workdir=record.workdir,
                    server=await self._take_over(sandbox_id, record),
                    keeper=self,
                )
                if record.spec.egress and not record.shut:
                    await self._open_egress(sandbox)
                return sandbox
        except FileNotFoundError:
            log.info("%s of an earlier process goes: a snapshot, or a sandbox that nobody was given yet", sandbox_id)
        except (SandboxError, OSError, ValueError) as error:
            log.warning("sandbox %s of an earlier process is given up: %s", sandbox_id, error)
        except asyncio.CancelledError:
            self._held.discard(sandbox_id)  # the reaper's again
            raise
        await shielded(self._discard_quietly(sandbox_id))
        return None

    def keep_record(self, sandbox: "ToolServerSandbox", *, shut: bool = False) -> None:
        record = SandboxRecord(sandbox.spec, sandbox.image_digest, sandbox.workdir, shut)
        self._owner.keep_record(sandbox.id, record.dump())

    async def _open_egress(self, sandbox: "ToolServerSandbox") -> None:
        listener = await listen_inside(await self.first_pid(sandbox.id), sandbox.ping)
        allowed = AllowList.parse(sandbox.spec.egress)
        self._proxies[sandbox.id] = EgressProxy(sandbox.id, allowed, listener, sandbox.egress_log, grants=self.granted)
        check_listening(await sandbox.read_file("/proc/net/tcp"))

    async def shut_egress(self, sandbox_id: str) -> None:
        proxy = self._proxies.get(sandbox_id)
        if proxy is not None:
            await shielded(proxy.close())
            self._proxies.pop(sandbox_id, None)

    async def shut_all_egress(self) -> None:
        await asyncio.gather(*map(self.shut_egress, tuple(self._proxies)))

    async def _discard_quietly(self, sandbox_id: str) -> None:
        """For a boot that has failed already: that is the error to tell."""
        try:
            await self.shut_egress(sandbox_id)
            await self.discard(sandbox_id)
        except (SandboxError, OSError) as error:
            log.warning("sandbox %s stays for the reaper: %s", sandbox_id, error)


class ToolServerSandbox(SandboxCalls):
    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        *,
        image_digest: str,
        workdir: str,
        server: ToolServer,
        keeper: ToolServerRuntime,
    ) -> None:
        super().__init__(server)
        self._id = sandbox_id
        self._spec = spec
        self._image_digest = image_digest
        self._workdir = workdir
        self._keeper = keeper
        self._egress_log = EgressLog()
        self._ended = False
        self._removed = False
        self._removing = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    @property
    def image_digest(self) -> str:
        return self._image_digest

    @property
    def workdir(self) -> str:
        return self._workdir

    @property
    def egress_log(self) -> EgressLog:
        return self._egress_log

    async def enter_workdir(self) -> None:
        """Enter the directory of its spec; a container's runtime would make one that is not there."""
        if self._spec.workdir is None:
            return
        try:
            await self._answer(self._server.work_in(self._spec.workdir))
        except PathError as error:
            raise SpecError(f"{self._spec.image} has no directory to work in at {error}") from None

    async def log_in(self, env: Mapping[str, str]) -> None:
        await self._answer(self._server.log_in(env))

    async def shut_egress(self) -> None:
        await self._keeper.shut_egress(self._id)
        if self._spec.egress and not self._ended:
            self._keeper.keep_record(self, shut=True)

    async def snapshot(self) -> Snapshot:
        return await self._copied(self._keeper.snapshot(self))

    async def fork(self, *, boot_timeout_s: float = 60.0) -> Sandbox:
        return await self._copied(self._keeper.fork(self, boot_timeout_s))

    def assign(self, spec: SandboxSpec) -> None:
        self._spec = spec
        self._keeper.note_use(spec.image)
        self._keeper.keep_record(self)

    async def remove(self) -> None:
        self._ended = True
        await shielded(self._remove())

    async def _remove(self) -> None:
        async with self._removing:
            if not self._removed:
                await self._keeper.shut_egress(self._id)
                await self._server.close()
                await self._keeper.discard(self._id)
                self._removed = True

    async def _copied(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` makes of this sandbox's files; SandboxGone where it is removed before they are copied."""
        try:
            if not self._ended:
                return await work
        except SandboxError:
            if not self._ended:
                raise
        finally:
            work.close()
        raise SandboxGone(f"sandbox {self._id} was removed")

    async def _believed(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            result = await call
        except SandboxError:
            self._doubt()
            raise
        self._doubt()
        return result

    def _doubt(self) -> None:
        if self._keeper.integrity_error(self._id):
            raise SandboxGone("it cannot be believed any more")

    async def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's result; a SandboxGone says what became of the sandbox, and by whose doing."""
        try:
            return await self._believed(call)
        except (SandboxGone, ProtocolError) as error:
            reason = error
        if self._ended:
            raise SandboxGone(f"sandbox {self._id} was removed")
        end = await self._keeper.exit_cause(self._id)
        # Nonsense came from a server that spoke, whatever became of it since.
        by = LossCause.INSIDE if isinstance(reason, ProtocolError) else end.by
        gone = SandboxGone(f"sandbox {self._id} is gone: {reason}; {end.reason}", by=by)
        if by is LossCause.INSIDE:  # a defect of the tool server looks just like that
            log.error("%s", gone)
        raise gone

"""Sandboxes whose calls a tool server answers, and what the runtimes that make them have in common."""

import asyncio
import contextlib
import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sandboxes.egress import AllowList, EgressLog, EgressProxy, check_seen, listen_inside
from sandboxes.errors import BootError, GoneBy, PathError, ProtocolError, SandboxError, SandboxGone, SpecError
from sandboxes.gate import Gate, Pace
from sandboxes.runtimes.engine import EngineError
from sandboxes.sandbox import MIB, ExecResult, FileEntry, Sandbox
from sandboxes.server import ToolServer
from sandboxes.spec import SandboxSpec, check_spec
from sandboxes.uninterrupted import uninterrupted
from sandboxes.uses import ImageUses

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a sandbox whose tool server no longer answers."""

    reason: str
    by: GoneBy


class ServingRuntime(ABC):
    """Boots some sandboxes at a time, and leaves nothing of one that does not come up. Uses of images are noted."""

    def __init__(self, uses: ImageUses) -> None:
        self._uses = uses
        self._held: set[str] = set()
        self._proxies: dict[str, EgressProxy] = {}
        self._gate = Gate(Pace(len(os.sched_getaffinity(0))))

    @abstractmethod
    async def _boot(self, sandbox_id: str, spec: SandboxSpec) -> "ServedSandbox":
        """A sandbox that has answered once, within what time the caller leaves."""

    @abstractmethod
    async def first_pid(self, sandbox_id: str) -> int:
        """Its first process, as this machine numbers it."""

    @abstractmethod
    async def discard(self, sandbox_id: str) -> None:
        """Nothing of it is left afterwards, or the reaper will see to it."""

    @abstractmethod
    async def ending_of(self, sandbox_id: str) -> Ending:
        """Never raises."""

    async def create(self, spec: SandboxSpec, *, boot_timeout_s: float = 60.0) -> Sandbox:
        """The time-out begins with this sandbox's turn; ``sandboxes.gate`` says how many boot at the same time."""
        check_spec(spec)
        async with self._gate.turn():
            sandbox_id = secrets.token_hex(6)
            self._held.add(sandbox_id)
            try:
                async with asyncio.timeout(boot_timeout_s):
                    sandbox = await self._boot(sandbox_id, spec)
                    self.note_use(spec.image)
                    await sandbox.go_to_work()
                    if spec.egress:
                        await self._open_egress(sandbox)
                    return sandbox
            except BaseException as error:
                await uninterrupted(self._discard_quietly(sandbox_id))
                match error:
                    case TimeoutError():
                        raise BootError(f"a sandbox of {spec.image} did not answer in {boot_timeout_s:g} s") from None
                    case EngineError():
                        raise BootError(f"a sandbox of {spec.image} did not start: {error.message}") from None
                raise

    @contextlib.asynccontextmanager
    async def scope(self, spec: SandboxSpec, *, boot_timeout_s: float = 60.0) -> AsyncIterator[Sandbox]:
        sandbox = await self.create(spec, boot_timeout_s=boot_timeout_s)
        try:
            yield sandbox
        finally:
            await sandbox.remove()

    def note_use(self, image: str) -> None:
        self._uses.note(image)

    async def _open_egress(self, sandbox: "ServedSandbox") -> None:
        listener = await listen_inside(await self.first_pid(sandbox.id), sandbox.ping)
        allowed = AllowList.parse(sandbox.spec.egress)
        self._proxies[sandbox.id] = EgressProxy(sandbox.id, allowed, listener, sandbox.egress_log)
        check_seen(await sandbox.read_file("/proc/net/tcp"))

    async def shut_egress(self, sandbox_id: str) -> None:
        proxy = self._proxies.get(sandbox_id)
        if proxy is not None:
            await uninterrupted(proxy.close())
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


class ServedSandbox:
    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        *,
        image_digest: str,
        workdir: str,
        server: ToolServer,
        keeper: ServingRuntime,
    ) -> None:
        self._id = sandbox_id
        self._spec = spec
        self._image_digest = image_digest
        self._workdir = workdir
        self._server = server
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

    async def go_to_work(self) -> None:
        """Enter the directory of its spec; a container's runtime would make one that is not there."""
        if self._spec.workdir is None:
            return
        try:
            await self._answer(self._server.work_in(self._spec.workdir))
        except PathError as error:
            raise SpecError(f"{self._spec.image} has no directory to work in at {error}") from None

    async def ping(self) -> None:
        await self._answer(self._server.ping())

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float,
        output_limit: int = MIB,
        merge_stderr: bool = False,
    ) -> ExecResult:
        return await self._answer(
            self._server.exec(
                argv,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout_s=timeout_s,
                output_limit=output_limit,
                merge_stderr=merge_stderr,
            )
        )

    async def shell(
        self, command: str, *, session: str = "main", timeout_s: float, output_limit: int = MIB
    ) -> ExecResult:
        return await self._answer(
            self._server.shell(command, session=session, timeout_s=timeout_s, output_limit=output_limit)
        )

    async def restart_shell(self, session: str = "main") -> None:
        await self._answer(self._server.restart_shell(session))

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 64 * MIB) -> bytes:
        return await self._answer(self._server.read_file(path, offset=offset, limit=limit))

    async def write_file(
        self, path: str, content: bytes, *, executable: bool | None = None, parents: bool = False
    ) -> None:
        await self._answer(self._server.write_file(path, content, executable=executable, parents=parents))

    async def write_link(self, path: str, target: str) -> None:
        await self._answer(self._server.write_link(path, target))

    async def remove_path(self, path: str) -> None:
        await self._answer(self._server.remove_path(path))

    async def stat(self, path: str) -> FileEntry:
        return await self._answer(self._server.stat(path))

    async def walk(self, root: str, *, prune: Sequence[str] = ()) -> list[FileEntry]:
        return await self._answer(self._server.walk(root, prune=prune))

    async def kill_all(self) -> None:
        await self._answer(self._server.kill_all())

    async def shut_egress(self) -> None:
        await self._keeper.shut_egress(self._id)

    def hand_over(self, spec: SandboxSpec) -> None:
        self._spec = spec
        self._keeper.note_use(spec.image)

    async def remove(self) -> None:
        self._ended = True
        await uninterrupted(self._remove())

    async def _remove(self) -> None:
        async with self._removing:
            if not self._removed:
                await self.shut_egress()
                await self._server.close()
                await self._keeper.discard(self._id)
                self._removed = True

    async def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's result; a SandboxGone says what became of the sandbox, and by whose doing."""
        try:
            return await call
        except (SandboxGone, ProtocolError) as error:
            reason = error
        if self._ended:
            raise SandboxGone(f"sandbox {self._id} was removed")
        end = await self._keeper.ending_of(self._id)
        # Nonsense came from a server that spoke, whatever became of it since.
        by = GoneBy.INSIDE if isinstance(reason, ProtocolError) else end.by
        gone = SandboxGone(f"sandbox {self._id} is gone: {reason}; {end.reason}", by=by)
        if by is GoneBy.INSIDE:  # a defect of the tool server looks just like that
            log.error("%s", gone)
        raise gone

"""A sandbox whose calls a tool server answers: what every runtime's sandboxes have in common."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from sandboxes.errors import GoneBy, ProtocolError, SandboxGone
from sandboxes.sandbox import MIB, ExecResult, FileEntry
from sandboxes.server import ToolServer
from sandboxes.spec import SandboxSpec
from sandboxes.uninterrupted import uninterrupted

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a sandbox whose tool server no longer answers."""

    reason: str
    by: GoneBy


class Keeper(Protocol):
    """Whoever made a sandbox."""

    async def ending_of(self, sandbox_id: str) -> Ending:
        """Never raises."""
        ...

    async def discard(self, sandbox_id: str) -> None:
        """Nothing of it is left afterwards, or the reaper will see to it."""
        ...


class ServedSandbox:
    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, *, image_digest: str, workdir: str, server: ToolServer, keeper: Keeper
    ) -> None:
        self._id = sandbox_id
        self._spec = spec
        self._image_digest = image_digest
        self._workdir = workdir
        self._server = server
        self._keeper = keeper
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

    async def remove(self) -> None:
        self._ended = True
        await uninterrupted(self._remove())

    async def _remove(self) -> None:
        async with self._removing:
            if not self._removed:
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

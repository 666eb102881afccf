"""The calls of a sandbox that its tool server answers. Each is wrapped to report the loss of the sandbox."""

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from sandboxes.interface import MIB, ExecResult, FileEntry, JobOutput
from sandboxes.toolserver.client import ToolServer

T = TypeVar("T")


class SandboxCalls(ABC):
    """The calls of ``Sandbox`` on a tool server."""

    def __init__(self, server: ToolServer) -> None:
        self._server = server

    @abstractmethod
    async def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        """Await ``call``. If the server is lost, raise SandboxGone with the cause."""

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
        login: bool = False,
        call_id: str | None = None,
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
                login=login,
                call_id=call_id,
            )
        )

    async def shell(
        self,
        command: str,
        *,
        session: str = "main",
        timeout_s: float,
        output_limit: int = MIB,
        call_id: str | None = None,
    ) -> ExecResult:
        return await self._answer(
            self._server.shell(
                command, session=session, timeout_s=timeout_s, output_limit=output_limit, call_id=call_id
            )
        )

    async def restart_shell(self, session: str = "main") -> None:
        await self._answer(self._server.restart_shell(session))

    async def start_job(self, command: str, *, session: str = "main", call_id: str | None = None) -> int:
        return await self._answer(self._server.start_job(command, session=session, call_id=call_id))

    async def job_output(
        self, job: int, *, wait_s: float = 0.0, quiet_s: float = 0.0, call_id: str | None = None
    ) -> JobOutput:
        return await self._answer(self._server.job_output(job, wait_s=wait_s, quiet_s=quiet_s, call_id=call_id))

    async def job_input(self, job: int, data: bytes, *, timeout_s: float = 5.0) -> int:
        return await self._answer(self._server.job_input(job, data, timeout_s=timeout_s))

    async def end_job(self, job: int) -> None:
        await self._answer(self._server.end_job(job))

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 64 * MIB) -> bytes:
        return await self._answer(self._server.read_file(path, offset=offset, limit=limit))

    async def write_file(
        self, path: str, content: bytes, *, executable: bool | None = None, parents: bool = False, new: bool = False
    ) -> bool:
        return await self._answer(
            self._server.write_file(path, content, executable=executable, parents=parents, new=new)
        )

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

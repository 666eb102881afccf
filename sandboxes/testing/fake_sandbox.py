"""A sandbox in memory, for tests."""

import asyncio
import posixpath
import socket
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sandboxes.egress import EgressLog
from sandboxes.errors import LossCause, PathError, SandboxGone, SnapshotError, SpecError
from sandboxes.interface import MIB, Capture, ExecResult, FileEntry, FileKind, Sandbox
from sandboxes.snapshot import Snapshot
from sandboxes.spec import SandboxSpec
from sandboxes.testing.files import FakeFiles, FakeNode
from sandboxes.testing.jobs import WithJobs
from sandboxes.testing.programs import Program, Streams, captured, streams_of
from sandboxes.testing.replay import CallResults
from sandboxes.testing.shell import NOT_FOUND, FakeShell, Processes, ShellExit
from sandboxes.toolserver.replay import current_call

if TYPE_CHECKING:
    from sandboxes.testing.fake_runtime import FakeRuntime

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

REASONS = {
    LossCause.MEMORY: "it ran out of memory",
    LossCause.INSIDE: "its first process ended by itself",
    LossCause.OUTSIDE: "its first process was killed",
}

T = TypeVar("T")


class FakeSandbox(WithJobs):
    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        files: FakeFiles,
        programs: Mapping[str, Program],
        runtime: "FakeRuntime",
        *,
        image_digest: str,
        copied: bool,
        lifetime: int | None,
        by: LossCause,
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.image_digest = image_digest
        self.workdir = spec.workdir or "/"
        self.egress_log = EgressLog()
        self.files = files
        try:
            self.files.need_directory(self.workdir)
        except PathError as error:
            refused = SnapshotError if copied else SpecError
            raise refused(f"workdir of {spec.image} cannot be entered: {error}; choose another workdir") from None
        self.listening: dict[int, int] = {}
        """The port of this machine that stands for each port of the sandbox."""
        self._programs = programs
        super().__init__(Processes())
        self._shells: dict[str, FakeShell] = {}
        self._answers = CallResults()
        self._runtime = runtime
        self._calls_left = lifetime
        self._by = by
        self._gone: asyncio.Future[SandboxGone] = asyncio.get_running_loop().create_future()
        self._thawed = asyncio.Event()
        self._thawed.set()

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
        how = (timeout_s, output_limit, merge_stderr, login)
        call = ("exec", tuple(argv), cwd, tuple((env or {}).items()), stdin, how)
        shell = self._shell(cwd=posixpath.normpath(self._path(cwd or "")), env=env or {})
        streams = streams_of(stdin, merge_stderr)

        async def run() -> int:
            try:
                shell.check_program(argv[0])
            except PathError as error:
                streams.err += f"toolserver: {error}\n".encode()
                return NOT_FOUND
            return await shell.program(argv, streams)

        work = self._timed(shell, run, streams, timeout_s, output_limit, session=False)
        return await self._once(call_id, call, work)

    async def shell(
        self,
        command: str,
        *,
        session: str = "main",
        timeout_s: float,
        output_limit: int = MIB,
        call_id: str | None = None,
    ) -> ExecResult:
        call = ("shell", command, session, timeout_s, output_limit)
        shell = self._shell_of(session)
        streams = streams_of(b"", True)

        async def run() -> int:
            return await shell.run(command, streams)

        work = self._timed(shell, run, streams, timeout_s, output_limit, session=True)
        result = await self._once(call_id, call, work)
        if result.shell_lost:
            self._shells.pop(session, None)
        return result

    async def restart_shell(self, session: str = "main") -> None:
        async def restart() -> None:
            shell = self._shells.pop(session, None)
            if shell:
                await self._processes.kill(shell.tree)

        await self._call(restart())

    async def read_file(self, path: str, *, offset: int = 0, limit: int = 64 * MIB) -> bytes:
        async def read() -> bytes:
            return self.files.read(self._path(path))[offset : offset + limit]

        return await self._call(read())

    async def write_file(
        self, path: str, content: bytes, *, executable: bool | None = None, parents: bool = False, new: bool = False
    ) -> bool:
        async def write() -> bool:
            return self.files.write(self._path(path), content, executable=executable, parents=parents, new=new)

        return await self._call(write())

    async def write_link(self, path: str, target: str) -> None:
        async def link() -> None:
            where = posixpath.normpath(self._path(path))
            self.files.make_directory(posixpath.dirname(where))
            self.files.put(where, FakeNode(FileKind.SYMLINK, target.encode("utf-8", "surrogateescape"), 0o777))

        await self._call(link())

    async def remove_path(self, path: str) -> None:
        async def remove() -> None:
            self.files.remove(self._path(path))

        await self._call(remove())

    async def stat(self, path: str) -> FileEntry:
        async def stat() -> FileEntry:
            found = self.files.stat(self._path(path))
            return FileEntry(path, found.kind, found.mode, found.size, found.mtime_ns)

        return await self._call(stat())

    async def walk(self, root: str, *, prune: Sequence[str] = ()) -> list[FileEntry]:
        async def walk() -> list[FileEntry]:
            return list(self.files.walk(self._path(root), prune))

        return await self._call(walk())

    async def kill_all(self) -> None:
        async def kill() -> ExecResult:
            self._shells.clear()
            await self._processes.kill()
            return ExecResult(0, Capture(b""), Capture(b""), timed_out=False, duration_s=0.0)

        await self._once(None, "kill all", kill())

    async def listen(self, port: int) -> socket.socket:
        """Listen at a free port of this machine, because a fake sandbox has no network of its own."""
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.listening[port] = listener.getsockname()[1]
        return listener

    async def shut_egress(self) -> None:
        """Do nothing: a fake sandbox has no network."""

    def assign(self, spec: SandboxSpec) -> None:
        self.spec = spec

    async def ping(self) -> None:
        await self._call(asyncio.sleep(0))

    async def freeze(self) -> None:
        """Let new calls wait. Programs that run already go on."""
        if self._gone.done():
            raise self._gone.result()
        self._thawed.clear()

    async def thaw(self) -> None:
        self._thawed.set()

    def is_frozen(self) -> bool:
        return not self._thawed.is_set()

    async def snapshot(self) -> Snapshot:
        if self._gone.done() and self.id not in self._runtime.sandboxes:
            raise self._gone.result()
        return self._runtime.snapshot(self)

    async def fork(self, *, boot_timeout_s: float = 60.0) -> Sandbox:
        base = await self.snapshot()
        try:
            return await self._runtime.create(self.spec, base=base, boot_timeout_s=boot_timeout_s)
        finally:
            await self._runtime.forget(base.id)

    async def remove(self) -> None:
        await self._end(SandboxGone(f"sandbox {self.id} was removed"))
        self._runtime.sandboxes.pop(self.id, None)

    async def die(self, *, by: LossCause = LossCause.OUTSIDE) -> None:
        """End the sandbox as if the tool server was killed: calls in progress and later calls raise SandboxGone."""
        await self._end(SandboxGone(f"sandbox {self.id} is gone: {REASONS[by]}", by=by))

    async def _end(self, why: SandboxGone) -> None:
        if not self._gone.done():
            self._gone.set_result(why)
        await self._processes.kill()

    async def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one request; it ends with its result, or with the loss of the sandbox."""
        if self._calls_left == 0:
            await self.die(by=self._by)
        if self._gone.done():
            work.close()
            raise self._gone.result()
        if self._calls_left is not None:
            self._calls_left -= 1
        task = asyncio.ensure_future(self._once_thawed(work))
        first: set[asyncio.Future[Any]] = {task, self._gone}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if self._gone.done():
            raise self._gone.result()
        return task.result()

    async def _once_thawed(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            await self._thawed.wait()
            return await work
        finally:
            work.close()

    async def _once(self, call_id: str | None, call: object, work: Coroutine[Any, Any, ExecResult]) -> ExecResult:
        """Return the result of a call; a repeated call returns the result of the first."""
        if call_id is None and (replayable := current_call()):
            call_id = replayable.next_change()
        if call_id is None:
            return await self._call(work)
        if not self._answers.has(call_id):
            return await self._answers.keep(call_id, call, self._call(work))
        work.close()
        return await self._call(self._answers.repeat(call_id, call))

    async def _timed(
        self,
        shell: FakeShell,
        work: Callable[[], Coroutine[Any, Any, int]],
        streams: Streams,
        timeout_s: float,
        output_limit: int,
        *,
        session: bool,
    ) -> ExecResult:
        started = time.monotonic()
        status: int | None = None
        timed_out = shell_lost = False
        task = self._processes.start(shell.tree, shell.pid, work())
        try:
            async with asyncio.timeout(timeout_s):
                status = await asyncio.shield(task)
        except TimeoutError:
            timed_out = shell_lost = True
            await self._processes.kill(shell.tree)
        except ShellExit as end:
            status, shell_lost = end.status, True
        except asyncio.CancelledError:
            if not task.cancelled():
                task.cancel()
                raise
            status, shell_lost = 128 + 9, True
        return ExecResult(
            exit_code=status,
            stdout=captured(streams.out, output_limit),
            stderr=Capture(b"") if streams.err is streams.out else captured(streams.err, output_limit),
            timed_out=timed_out,
            duration_s=time.monotonic() - started,
            shell_lost=shell_lost and session,
        )

    def _shell_of(self, session: str) -> FakeShell:
        return self._shells.setdefault(session, self._shell(cwd=self.workdir, env={}))

    def _shell(self, *, cwd: str, env: Mapping[str, str]) -> FakeShell:
        env = {"PATH": PATH, **self.spec.environment, **env}
        shell = FakeShell(self.files, self._processes, self._programs, env=env, cwd=cwd, tree="")
        shell.tree = str(shell.pid)
        return shell

    def _path(self, path: str) -> str:
        return posixpath.join(self.workdir, path)

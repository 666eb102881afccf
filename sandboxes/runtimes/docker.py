"""Sandboxes as Docker containers, made and removed through the Docker Engine's API alone."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sandboxes.errors import (
    BootError,
    GoneBy,
    ImageError,
    PathError,
    ProtocolError,
    RuntimeUnavailable,
    SandboxError,
    SandboxGone,
)
from sandboxes.owner import Owner, remove_directory
from sandboxes.reaper import reap
from sandboxes.runtimes.container import (
    HOSTS,
    LABEL_OWNER,
    LABEL_SANDBOX,
    LABEL_STATE_DIR,
    check_spec,
    container_config,
)
from sandboxes.runtimes.ending import Ending, describe, ending
from sandboxes.runtimes.engine import Engine, EngineError, Image
from sandboxes.sandbox import MIB, ExecResult, FileEntry, Sandbox
from sandboxes.server import ToolServer
from sandboxes.spec import SandboxSpec
from sandboxes.toolbox import Toolbox, ensure_toolbox
from sandboxes.uninterrupted import uninterrupted

HOST_ONLY_ID = 0x7FFFFFFD
"""Owner of a run directory once its sandbox has answered: a user that no process inside is or can become."""

SOCKET_NAME = "sock"
HEALTH_CHECK_S = 0.25
FOREVER_S = 86_400.0
BOOTS_PER_CORE = 2
"""More at once makes each slower and none sooner."""

T = TypeVar("T")
log = logging.getLogger(__name__)


class DockerRuntime:
    """Makes sandboxes on this machine's Docker daemon, for one owner. Open it with ``open``."""

    name = "docker"

    def __init__(self, engine: Engine, owner: Owner, toolbox: Toolbox, hosts: Path) -> None:
        self._engine = engine
        self._owner = owner
        self._toolbox = toolbox
        self._hosts = hosts
        self._held: set[str] = set()
        self._boots = asyncio.Semaphore(BOOTS_PER_CORE * (os.cpu_count() or 1))

    @classmethod
    async def open(
        cls,
        *,
        state_dir: Path,
        owner: str | None = None,
        docker_host: str | None = None,
        toolbox: Toolbox | None = None,
    ) -> "DockerRuntime":
        """Find the daemon and the toolbox and become ``owner``. Raises RuntimeUnavailable with the remedy."""
        async with contextlib.AsyncExitStack() as undo:
            engine = Engine(docker_host)
            undo.push_async_callback(engine.close)
            await engine.connect()
            claim = Owner.claim(state_dir, owner)
            undo.callback(claim.release)
            if toolbox is None:
                toolbox = await asyncio.to_thread(ensure_toolbox, claim.state_dir)
            hosts = claim.sandbox_dir("hosts")
            hosts.write_text(HOSTS)
            undo.pop_all()
        return cls(engine, claim, toolbox, hosts)

    async def create(self, spec: SandboxSpec, *, boot_timeout_s: float = 60.0) -> Sandbox:
        """The time-out begins with this sandbox's turn: some ``BOOTS_PER_CORE`` boot at the same time."""
        check_spec(spec)
        async with self._boots:
            sandbox_id = secrets.token_hex(6)
            self._held.add(sandbox_id)
            try:
                async with asyncio.timeout(boot_timeout_s):
                    return await self._boot(sandbox_id, spec)
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

    async def living(self) -> AsyncIterator[str]:
        for sandbox_id in (await self._mine()).values():
            yield sandbox_id

    async def reap(self) -> int:
        """Also removes what an earlier process of the same owner, or a failed clean-up of this one, left behind."""
        strays = [container for container, name in (await self._mine()).items() if name not in self._held]
        return await self._engine.remove_all(strays) + await reap(self._engine, self._owner.state_dir)

    async def close(self) -> None:
        await uninterrupted(self._close())

    async def _close(self) -> None:
        try:
            await self._engine.remove_all(await self._mine())
            self._held.clear()
            self._owner.release()
        finally:
            await self._engine.close()

    async def _mine(self) -> dict[str, str]:
        """Container id → sandbox id, of this owner in this state directory."""
        found = await self._engine.containers(f"{LABEL_OWNER}={self._owner.name}")
        state_dir = str(self._owner.state_dir)
        return {c.id: c.labels[LABEL_SANDBOX] for c in found if c.labels.get(LABEL_STATE_DIR) == state_dir}

    async def _boot(self, sandbox_id: str, spec: SandboxSpec) -> "DockerSandbox":
        image = await self._engine.image(spec.image)
        run_dir = self._owner.sandbox_dir(sandbox_id)
        _make_run_dir(run_dir)
        config = container_config(
            spec,
            image_id=image.id,
            labels=self._labels(sandbox_id),
            toolbox=self._toolbox.path.absolute(),
            run_dir=run_dir,
            hosts=self._hosts,
        )
        name = container_name(sandbox_id)
        await uninterrupted(self._create(name, config, image))
        await self._engine.start(name)
        server = await self._connect(name, run_dir / SOCKET_NAME, spec)
        _close_run_dir(run_dir)
        await _refuse_network(server)
        return DockerSandbox(sandbox_id, spec, image, server, self)

    async def _create(self, name: str, config: Mapping[str, Any], image: Image) -> None:
        try:
            await self._engine.create(name, config)
        except EngineError as error:
            if error.status == 404:
                raise ImageError(f"image {image.id} was removed just now; build or pull it again") from None
            raise

    async def _connect(self, name: str, socket: Path, spec: SandboxSpec) -> ToolServer:
        """The server once it has answered; gives up as soon as the container's first process has ended."""
        state = await self._engine.state(name)
        if state is None or not state.running:
            raise BootError(f"a sandbox of {spec.image} ended at once: {describe(state)}")
        # The caller bounds the time.
        attempt = asyncio.create_task(ToolServer.connect(socket, expected_pid=state.pid, timeout_s=FOREVER_S))
        try:
            while not (await asyncio.wait({attempt}, timeout=HEALTH_CHECK_S))[0]:
                state = await self._engine.state(name)
                if state is None or not state.running:
                    raise BootError(f"a sandbox of {spec.image} ended before it answered: {describe(state)}")
            return attempt.result()
        finally:
            attempt.cancel()

    def _labels(self, sandbox_id: str) -> dict[str, str]:
        return {
            LABEL_OWNER: self._owner.name,
            LABEL_SANDBOX: sandbox_id,
            LABEL_STATE_DIR: str(self._owner.state_dir),
        }

    async def discard(self, sandbox_id: str) -> None:
        """Container and run directory are gone afterwards, or ``reap`` will see to them."""
        self._held.discard(sandbox_id)
        await self._engine.remove(container_name(sandbox_id))
        remove_directory(self._owner.sandbox_dir(sandbox_id))

    async def _discard_quietly(self, sandbox_id: str) -> None:
        """For a boot that has failed already: that is the error to tell."""
        try:
            await self.discard(sandbox_id)
        except SandboxError as error:
            log.warning("sandbox %s stays for the reaper: %s", sandbox_id, error)

    async def ending_of(self, sandbox_id: str) -> Ending:
        return await ending(self._engine, container_name(sandbox_id))


class DockerSandbox:
    """A container and the connection to the tool server in it."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, image: Image, server: ToolServer, runtime: DockerRuntime
    ) -> None:
        self._id = sandbox_id
        self._spec = spec
        self._image = image
        self._server = server
        self._runtime = runtime
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
        return self._image.id

    @property
    def workdir(self) -> str:
        return self._spec.workdir or self._image.workdir

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
                await self._runtime.discard(self._id)
                self._removed = True

    async def _answer(self, call: Coroutine[Any, Any, T]) -> T:
        """The call's result; a SandboxGone says what became of the container, and by whose doing."""
        try:
            return await call
        except (SandboxGone, ProtocolError) as error:
            reason = error
        if self._ended:
            raise SandboxGone(f"sandbox {self._id} was removed")
        end = await self._runtime.ending_of(self._id)
        # Nonsense came from a server that spoke, whatever became of it since.
        by = GoneBy.INSIDE if isinstance(reason, ProtocolError) else end.by
        gone = SandboxGone(f"sandbox {self._id} is gone: {reason}; {end.reason}", by=by)
        if by is GoneBy.INSIDE:  # a defect of the tool server looks just like that
            log.error("%s", gone)
        raise gone


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


def container_name(sandbox_id: str) -> str:
    return f"farm-{sandbox_id}"


def _make_run_dir(run_dir: Path) -> None:
    """Open to the sandbox's first process, whoever it is: nothing of the image has run yet."""
    run_dir.mkdir()
    run_dir.chmod(0o777)


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

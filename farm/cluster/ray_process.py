"""One machine's part of a Ray cluster: the processes of ``ray start --block``, owned by us and ended by us."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from farm.cluster.errors import FarmError
from farm.cluster.state_dir import note_scratch, sweep_scratch
from farm.cluster.supervisor import end_processes, how_ended

LONGEST_DIRECTORY = 36
"""Ray adds up to 70 characters for its Unix sockets, whose paths hold 107."""

OBJECT_STORE_BYTES = 96 * 1024 * 1024
"""Next to nothing travels through Ray's object store; less than 75 MiB it refuses."""

_START_S = 60.0
_ANSWER_S = 5.0
_STOP_S = 15.0
_LATE_S = 3.0
_POLL_S = 0.05

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_LOG_TO_DRIVER": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


_DIED = re.compile(r"-- (\w+) \[exit code=(-?\d+)\]")


def what_died(log: Path, since: float = 0.0) -> str:
    """Which of Ray's processes ended unexpectedly, and how; empty where the log tells of none, or is of before."""
    with contextlib.suppress(OSError):
        found = _DIED.search(log.read_text(errors="replace"))
        if found and log.stat().st_mtime >= since:
            return f"Ray's {found[1]} {how_ended(int(found[2]))}"
    return ""


async def answers(address: str) -> bool:
    """Whether anybody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, OverflowError):
        return False
    writer.close()
    return True


def authenticated(token_file: Path) -> dict[str, str]:
    """The environment in which Ray shows, and demands, the token of a file on every connection.

    An empty RAY_AUTH_TOKEN is none; one that somebody has set would come before the file.
    """
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(token_file)}


@dataclass(frozen=True, slots=True)
class RayAccess:
    """What a process of this machine needs to reach the cluster. ``log`` is Ray's own."""

    address: str
    directory: Path
    log: Path


class RayNode:
    """``async with`` it: a head where ``join`` is None, else a member of the cluster at that address.

    ``port`` 0 takes a free one. The processes get SIGTERM when their owner dies, however that happens. Entering raises
    FarmError; afterwards no process, socket or directory is left.
    """

    def __init__(
        self, run_dir: Path, token_file: Path, *, join: str | None = None, node_ip: str, port: int = 0
    ) -> None:
        self._run_dir = run_dir
        self._environment = authenticated(token_file)
        self._join = join
        self._node_ip = node_ip
        self._port = port
        self._process: Process | None = None
        self.directory = Path()
        self.address = ""

    @property
    def session_id(self) -> int:
        """Of all the processes of this node, workers included."""
        assert self._process is not None
        return self._process.pid

    @property
    def access(self) -> RayAccess:
        return RayAccess(self.address, self.directory, self.log)

    async def death(self) -> str:
        """Wait until the node has ended; what of it ended, and how."""
        assert self._process is not None
        code = await self._process.wait()
        return what_died(self.log) or f"Ray {how_ended(code)}"

    async def __aenter__(self) -> Self:
        await self._look_first()
        self.directory = self._make_directory()
        try:
            self._process = await self._spawn()
            async with asyncio.timeout(_START_S):
                self.address = await self._up()
        except TimeoutError:
            await self._end()
            raise FarmError(f"Ray did not start in {_START_S:.0f} s; its log is {self.log}") from None
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._end())

    async def _look_first(self) -> None:
        """Say at once what Ray would find out only after a minute."""
        if self._join is not None:
            host, _, port = self._join.rpartition(":")
            if not host or not port.isdecimal():
                raise FarmError(f"{self._join!r} is no address; write HOST:PORT as `farm status` shows it on the head")
            if not await answers(self._join):
                raise FarmError(self._nobody_there())
        elif self._port:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", self._port))
                except OSError as error:
                    raise FarmError(
                        f"port {self._port}: {error.strerror}; choose another ray_port, or 0 for a free one"
                    ) from None

    def _nobody_there(self) -> str:
        return f"no farm answers at {self._join}; give the address that `farm status` shows on its head"

    @property
    def log(self) -> Path:
        return self._run_dir / "ray.log"

    def _make_directory(self) -> Path:
        """Under the state directory where that is short enough, else private in the system's temporary one."""
        chosen = (self._run_dir / "ray").absolute()
        if len(str(chosen)) > LONGEST_DIRECTORY:
            chosen = Path(tempfile.mkdtemp(prefix="farm-ray-", dir="/tmp"))
        else:
            chosen.mkdir(mode=0o700)
        note_scratch(self._run_dir, chosen)
        return chosen

    async def _spawn(self) -> Process:
        program = Path(sys.executable).with_name("ray")
        setpriv = shutil.which("setpriv")
        if not program.exists():
            raise FarmError(f"{program} is missing; pip install 'rollout-farm[node]'")
        if setpriv is None:
            raise FarmError("setpriv is not installed; apt-get install util-linux")
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            return await asyncio.create_subprocess_exec(
                setpriv,
                "--pdeathsig",
                "TERM",
                str(program),
                "start",
                "--block",
                *self._arguments(),
                env={**os.environ, **_QUIET, **self._environment},
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _arguments(self) -> list[str]:
        role = (
            ["--head", f"--port={self._port}", "--include-dashboard=false", f"--node-ip-address={self._node_ip}"]
            if self._join is None
            else [f"--address={self._join}"]
        )
        return [
            *role,
            "--disable-usage-stats",
            "--include-log-monitor=false",
            f"--temp-dir={self.directory}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--log-style=record",
            "--log-color=false",
        ]

    async def _up(self) -> str:
        """The address of the cluster, which Ray writes down once the node is up."""
        assert self._process is not None
        written = self.directory / "ray_current_cluster"
        while self._process.returncode is None and not self._refused():
            with contextlib.suppress(FileNotFoundError):
                if address := written.read_text().strip():
                    return address
            await asyncio.sleep(_POLL_S)
        raise FarmError(self._why_not())

    def _refused(self) -> bool:
        """The head has refused our token; Ray asks it twenty times more before it says so."""
        return self._join is not None and "Unauthenticated" in self.log.read_text(errors="replace")

    def _why_not(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        if self._refused():
            return f"the farm at {self._join} refuses our join token; set FARM_JOIN_TOKEN to its own"
        if self._join is not None:
            return self._nobody_there()
        return f"Ray did not start: {lines[-1] if lines else 'it said nothing'}; its log is {self.log}"

    async def _end(self) -> None:
        """Terminate, and after a while kill, every process of the session; remove the directory."""
        process = self._process
        if process is not None:
            members = _session(process.pid)
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _STOP_S)
            await asyncio.to_thread(end_processes, [*members, *_session(process.pid)], _LATE_S)
            await process.wait()
        await asyncio.to_thread(sweep_scratch, self._run_dir)


def _session(session_id: int) -> list[psutil.Process]:
    """The processes of a session: Ray's workers leave its process group, but not the session."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session_id:
                members.append(process)
    return members

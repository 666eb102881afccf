"""The Ray processes of one machine: ``ray start --block``, started and ended by the farm."""

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

from farm.cluster.errors import ClusterError
from farm.cluster.state_dir import note_scratch, sweep_scratch
from farm.cluster.supervisor import describe_exit, end_processes

LONGEST_DIRECTORY = 36
"""The longest path of Ray's directory. Ray adds up to 70 characters for its Unix sockets, whose paths hold 107."""

OBJECT_STORE_BYTES = 96 * 1024 * 1024
"""The size of Ray's object store. The farm hardly uses it; Ray refuses less than 75 MiB."""

_START_S = 60.0
_ANSWER_S = 5.0
_STOP_S = 15.0
_LATE_S = 3.0
_POLL_S = 0.05

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_LOG_TO_DRIVER": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's default 15 would starve scheduler and node agent beside busy sandboxes
}


_DIED = re.compile(r"-- (\w+) \[exit code=(-?\d+)\]")


def what_died(log: Path, since: float = 0.0) -> str:
    """Return which of Ray's processes ended unexpectedly, and how, from Ray's log.

    Return "" if the log names none, or if it was last written before ``since`` (Unix seconds).
    """
    with contextlib.suppress(OSError):
        found = _DIED.search(log.read_text(errors="replace"))
        if found and log.stat().st_mtime >= since:
            return f"Ray's {found[1]} {describe_exit(int(found[2]))}"
    return ""


async def answers(address: str) -> bool:
    """Return whether a TCP server accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_ANSWER_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, TimeoutError, OverflowError):
        return False
    writer.close()
    return True


def authenticated(token_file: Path) -> dict[str, str]:
    """Return the environment in which Ray presents, and demands, the token of a file on every connection.

    An empty RAY_AUTH_TOKEN counts as none; one from outside would take precedence over the file.
    """
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": str(token_file)}


@dataclass(frozen=True, slots=True)
class RayAccess:
    """The values with which a process of this machine reaches the cluster. ``log`` is Ray's own log."""

    address: str
    directory: Path
    log: Path


class RayNode:
    """A Ray node: use it with ``async with``. It is a head if ``join`` is None, else a member of the cluster at that
    address.

    ``port`` 0 takes a free one. The processes get SIGTERM when their owner dies, even by SIGKILL. Entering raises
    ClusterError; afterwards no process, socket or directory is left.
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
        """Return the session id of all processes of this node, workers included."""
        assert self._process is not None
        return self._process.pid

    @property
    def access(self) -> RayAccess:
        return RayAccess(self.address, self.directory, self.log)

    async def death(self) -> str:
        """Wait until the node has ended. Return which of its processes ended, and how."""
        assert self._process is not None
        code = await self._process.wait()
        return what_died(self.log) or f"Ray {describe_exit(code)}"

    async def __aenter__(self) -> Self:
        await self._check_first()
        self.directory = self._make_directory()
        try:
            self._process = await self._spawn()
            async with asyncio.timeout(_START_S):
                self.address = await self._up()
        except TimeoutError:
            await self._end()
            raise ClusterError(f"Ray did not start in {_START_S:.0f} s; its log is {self.log}") from None
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._end())

    async def _check_first(self) -> None:
        """Raise ClusterError at once for faults that Ray would report only after a minute."""
        if self._join is not None:
            host, _, port = self._join.rpartition(":")
            if not host or not port.isdecimal():
                raise ClusterError(
                    f"{self._join!r} is not an address; write HOST:PORT as `farm status` shows it on the head"
                )
            if not await answers(self._join):
                raise ClusterError(self._no_answer())
        elif self._port:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("", self._port))
                except OSError as error:
                    raise ClusterError(
                        f"port {self._port}: {error.strerror}; choose another ray_port, or 0 for a free one"
                    ) from None

    def _no_answer(self) -> str:
        return f"no farm answers at {self._join}; give the address that `farm status` shows on its head"

    @property
    def log(self) -> Path:
        return self._run_dir / "ray.log"

    def _make_directory(self) -> Path:
        """Make Ray's directory: in the state directory if its path is short enough, else a private one in /tmp."""
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
            raise ClusterError(f"{program} is missing; pip install 'rollout-farm[node]'")
        if setpriv is None:
            raise ClusterError("setpriv is not installed; apt-get install util-linux")
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
                env={**os.environ, **_SETTINGS, **self._environment},
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        finally:
            os.close(log)

    def _arguments(self) -> list[str]:
        role = (
            [
                "--head",
                f"--port={self._port}",
                f"--node-ip-address={self._node_ip}",
                "--include-dashboard=false",
                "--no-monitor",  # of Ray's autoscaler, which adds and removes machines
            ]
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
        """Return the address of the cluster, which Ray writes to a file once the node is up."""
        assert self._process is not None
        written = self.directory / "ray_current_cluster"
        while self._process.returncode is None and not self._refused():
            with contextlib.suppress(FileNotFoundError):
                if address := written.read_text().strip():
                    return address
            await asyncio.sleep(_POLL_S)
        raise ClusterError(self._why_not())

    def _refused(self) -> bool:
        """Return whether the head has refused the join token. Ray itself tries twenty more times before it reports
        that.
        """
        return self._join is not None and "Unauthenticated" in self.log.read_text(errors="replace")

    def _why_not(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        if self._refused():
            remedy = "set FARM_JOIN_TOKEN to the token in state_dir/join-token of its head"
            return f"the farm at {self._join} refuses the join token; {remedy}"
        if self._join is not None:
            return self._no_answer()
        return f"Ray did not start: {lines[-1] if lines else 'it wrote no output'}; its log is {self.log}"

    async def _end(self) -> None:
        """Terminate every process of the session, kill those that remain, and remove the directory."""
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
    """Return the processes of a session. Ray's workers leave its process group, but stay in its session."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) == session_id:
                members.append(process)
    return members

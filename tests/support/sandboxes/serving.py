"""A real tool server for a test: as an ordinary process, or as the first process of a namespace with nothing in it."""

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from sandboxes.interface import ExecResult, JobOutput
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox

SPILLS = Path("/tmp/.farm-output")
"""Of all servers outside a sandbox, which is why their tests run one after another."""
CONNECT_S = 60.0

ENTER = """
set -e
mount --bind "$1" "$3/.farm"
mount --bind "$2" "$3/.farm-run"
mount -t proc proc "$3/proc"
exec chroot "$3" /.farm/bin/toolserver
"""


@dataclass(frozen=True, slots=True)
class Served:
    """``home`` is the directory that relative paths and commands begin in."""

    server: ToolServer
    process: psutil.Process
    socket: Path
    home: Path


@contextlib.asynccontextmanager
async def ordinary(toolbox: Toolbox, directory: Path) -> AsyncIterator[Served]:
    """Whatever it started is gone at the end."""
    home, socket = directory / "home", directory / "sock"
    home.mkdir()
    binaries = toolbox.path / "bin"
    argv: list[str | Path] = [binaries / "toolserver", "--any-peer", "--socket", socket, "--shell", binaries / "bash"]
    try:
        with _running(argv, home) as process:
            server = await ToolServer.connect(socket, expected_pid=process.pid, timeout_s=CONNECT_S)
            try:
                yield Served(server, process, socket, home)
            finally:
                await server.close()
    finally:
        shutil.rmtree(SPILLS, ignore_errors=True)


@contextlib.asynccontextmanager
async def first_process(toolbox: Toolbox, directory: Path) -> AsyncIterator[Served]:
    """In pid and mount namespaces of its own and a root that holds the toolbox and /proc alone. Needs root."""
    root, run = directory / "root", directory / "run"
    for path in (run, root / ".farm", root / ".farm-run", root / "proc"):
        path.mkdir(parents=True)
    argv: list[str | Path] = [
        "unshare",
        "--pid",
        "--mount",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        ENTER,
        "sh",
        toolbox.path,
        run,
        root,
    ]
    with _running(argv, directory) as unshare:
        server = await ToolServer.connect(run / "sock", expected_pid=None, timeout_s=CONNECT_S)
        try:
            yield Served(server, unshare.children()[0], run / "sock", root)
        finally:
            await server.close()


@contextlib.contextmanager
def _running(argv: Sequence[str | Path], cwd: Path) -> Iterator[psutil.Process]:
    with subprocess.Popen(argv, cwd=cwd) as child:
        process = psutil.Process(child.pid)
        try:
            yield process
        finally:
            below = process.children(recursive=True) if process.is_running() else []
            for left in below:  # before the server, which reaps them
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            psutil.wait_procs(below)
            child.kill()


def out(result: ExecResult) -> str:
    assert result.stdout.whole
    return result.stdout.head.decode()


def spilled(result: ExecResult | JobOutput) -> bytes:
    """The spilled output of an ordinary server."""
    assert result.spill is not None
    return Path(result.spill).read_bytes()


async def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    """Waits for what another process brings about and nobody announces."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    return True


async def gone(marker: str) -> bool:
    """No living process has ``marker`` among its arguments any more."""
    return await eventually(lambda: running(marker) == 0)


def running(marker: str) -> int:
    """How many living processes have ``marker`` among their arguments."""
    return sum(_runs(process, marker) for process in psutil.process_iter())


def _runs(process: psutil.Process, marker: str) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
        return marker in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    return False

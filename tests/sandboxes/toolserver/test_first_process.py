"""The tool server as the first process of a sandbox that holds nothing but the toolbox."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from sandboxes.errors import PathError
from sandboxes.interface import Capture
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import Served, first_process, gone, out
from tests.support.services import needs_root

WAIT_S = 60.0
BUSYBOX = "/.farm/bin/busybox"

pytestmark = needs_root


@pytest.fixture
async def served(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Served]:
    async with first_process(toolbox, tmp_path) as served:
        yield served


@pytest.fixture
def server(served: Served) -> ToolServer:
    return served.server


async def say(server: ToolServer, command: str) -> str:
    return out(await server.shell(command, timeout_s=WAIT_S))


async def processes(server: ToolServer) -> dict[str, tuple[str, str]]:
    """Name and state of every process by its pid, but for the shell that looks."""
    script = "for f in /proc/[0-9]*/stat; do read -r line < $f && echo $line; done 2>&-; echo $$"
    *lines, ours = out(await server.exec(["/.farm/bin/bash", "-c", script], timeout_s=WAIT_S)).splitlines()
    seen = {
        line.split()[0]: (line[line.index("(") + 1 : line.rindex(")")], line[line.rindex(")") + 2]) for line in lines
    }
    return {pid: row for pid, row in seen.items() if pid != ours}


async def states(server: ToolServer) -> set[str]:
    return {state for _, state in (await processes(server)).values()}


async def test_server_works_in_empty_image(server: ToolServer, served: Served) -> None:
    assert await say(server, "pwd; : </dev/null") == "/\nbash: line 1: /dev/null: No such file or directory\n"
    assert out(await server.exec([BUSYBOX, "cat"], stdin=b"in", timeout_s=WAIT_S)) == "in"
    assert out(await server.exec([BUSYBOX, "cat"], timeout_s=WAIT_S)) == ""
    await server.write_file("/made/by/us", b"x", parents=True)
    assert (served.home / "made/by/us").read_bytes() == b"x"
    found = await server.exec(["/.farm/bin/rg", "-c", "x", "/made"], timeout_s=WAIT_S)
    assert (found.exit_code, found.stdout) == (0, Capture(b"/made/by/us:1\n"))


async def test_spill_works_without_tmp(server: ToolServer) -> None:
    result = await server.exec([BUSYBOX, "seq", "1000"], timeout_s=WAIT_S, output_limit=10)
    assert result.spill == "/tmp/.farm-output/1"
    assert await server.read_file(result.spill) == "".join(f"{n}\n" for n in range(1, 1001)).encode()


@pytest.mark.parametrize(
    "obstacle", ["ln -s / /tmp/.farm-output", "touch /tmp/.farm-output", "mkfifo /tmp/.farm-output"]
)
async def test_spill_does_not_follow_symlinks(server: ToolServer, obstacle: str) -> None:
    await say(server, f"b={BUSYBOX}; $b mkdir /tmp; $b {obstacle}")
    result = await server.exec([BUSYBOX, "seq", "1000"], timeout_s=WAIT_S, output_limit=10)
    assert (result.spill, result.stdout.elided) == (None, 3893 - 10)


@pytest.mark.parametrize("signal", ["KILL", "STOP", "TERM", "INT", "HUP", "SEGV", "USR1", "CHLD", "RTMIN", "PIPE"])
async def test_init_process_ignores_signals_from_inside(server: ToolServer, signal: str) -> None:
    await say(server, f"kill -{signal} 1; kill -{signal} 1")
    await server.ping()
    assert await say(server, "echo on") == "on\n"


async def test_server_survives_kill_of_all_processes(server: ToolServer) -> None:
    result = await server.shell("kill -9 -1; echo never", timeout_s=WAIT_S)
    assert result.shell_lost or result.stdout.head.endswith(b"never\n")  # a sender of -1 may be spared
    assert await say(server, "echo on") == "on\n"


async def heard(argv: Sequence[str]) -> bytes:
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    return (await process.communicate())[0]


async def test_client_from_inside_is_refused(served: Served) -> None:
    script = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "try: s.sendall(bytes.fromhex('09000000' + '01' + '00' * 7 + '01')); print(s.recv(100))\n"
        "except ConnectionError: print(b'')\n"
    )
    enter = ["nsenter", f"--pid=/proc/{served.process.pid}/ns/pid"]
    python = ["python3", "-c", script, str(served.socket)]
    assert await heard([*enter, *python]) == b"b''\n"
    assert (await heard(python)).startswith(b"b'\\x0b")


async def test_orphans_are_reaped(server: ToolServer) -> None:
    await server.write_file("/dev/null", b"", parents=True)  # bash wants it for what runs in the background
    await say(server, f"for i in 1 2 3 4 5; do ({BUSYBOX} setsid {BUSYBOX} true &) ; done")
    await server.restart_shell()
    while "Z" in await states(server):
        await server.ping()


async def test_kill_all_leaves_no_process(server: ToolServer) -> None:
    mark = f"5555.{os.getpid()}"
    hostile = (
        f"s() {{ {BUSYBOX} sleep {mark}; }}; trap '' TERM; for i in $(while [ $((n++)) -lt 50 ]; do echo $n; done); do"
        f" ({BUSYBOX} setsid {BUSYBOX} sleep {mark} &) ; {BUSYBOX} sleep {mark} & done; kill -STOP %1; echo up"
    )
    await server.write_file("/dev/null", b"", parents=True)
    assert await say(server, hostile) == "up\n"
    await say(server, "x=old")
    assert len(await processes(server)) > 100
    await server.kill_all()
    assert [name for name, _ in (await processes(server)).values()] == ["toolserver"]
    assert await gone(mark)
    assert await say(server, "echo ${x-fresh}") == "fresh\n"


async def test_kill_all_ends_running_commands(server: ToolServer) -> None:
    running = server.exec([BUSYBOX, "sleep", "100"], timeout_s=200.0)
    in_shell = server.shell(f"{BUSYBOX} sleep 100", timeout_s=200.0)
    calls = [asyncio.ensure_future(running), asyncio.ensure_future(in_shell)]
    while len(await processes(server)) < 4:
        await server.ping()
    await server.kill_all()
    program, shell = await asyncio.gather(*calls)
    assert (program.exit_code, program.timed_out) == (137, False)
    assert (shell.exit_code, shell.shell_lost) == (137, True)


async def test_write_to_full_disk_keeps_old_file(server: ToolServer, served: Served) -> None:
    await say(server, f"{BUSYBOX} mkdir /tmp; {BUSYBOX} mount -t tmpfs -o size=64k none /tmp")
    await server.write_file("/tmp/f", b"old")
    with pytest.raises(PathError, match="No space left"):
        await server.write_file("/tmp/f", bytes(100_000))
    assert await server.read_file("/tmp/f") == b"old"
    assert [entry.path for entry in await server.walk("/tmp")] == ["f"]
    result = await server.exec([BUSYBOX, "seq", "100000"], timeout_s=WAIT_S, output_limit=100)
    assert (result.exit_code, result.stdout.elided) == (0, 588895 - 100)
    assert result.spill is not None
    assert (await server.read_file(result.spill)).startswith(b"1\n2\n3\n")


async def test_mount_point_file_is_written_in_place(server: ToolServer) -> None:
    await server.write_file("/f", b"old content")
    await server.write_file("/other", b"under")
    await say(server, f"{BUSYBOX} mount --bind /other /f")
    await server.write_file("/f", b"new")
    assert await server.read_file("/other") == b"new"

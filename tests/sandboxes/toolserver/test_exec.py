"""Programs run by the tool server: their streams, their end, and the end of all they started."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.errors import BootError, ProtocolError, SandboxGone, SpecError
from sandboxes.interface import Capture
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import Served, eventually, gone, ordinary, out, running, spilled

WAIT_S = 60.0


@pytest.fixture
async def served(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Served]:
    async with ordinary(toolbox, tmp_path) as served:
        yield served


@pytest.fixture
def server(served: Served) -> ToolServer:
    return served.server


async def sh(server: ToolServer, script: str, timeout_s: float = WAIT_S) -> str:
    return out(await server.exec(["sh", "-c", script], timeout_s=timeout_s))


async def test_streams_exit_code_and_directory(server: ToolServer, served: Served) -> None:
    result = await server.exec(["sh", "-c", "pwd; echo complaint >&2; exit 3"], timeout_s=WAIT_S)
    assert (result.exit_code, result.timed_out, result.shell_lost, result.spill) == (3, False, False, None)
    assert out(result) == f"{served.home}\n"
    assert result.stderr == Capture(b"complaint\n")


async def test_merged_streams_keep_their_order(server: ToolServer) -> None:
    script = "echo 1; echo 2 >&2; echo 3"
    result = await server.exec(["sh", "-c", script], timeout_s=WAIT_S, merge_stderr=True)
    assert (out(result), result.stderr) == ("1\n2\n3\n", Capture(b""))


async def test_environment_is_added_to_and_overridden(server: ToolServer) -> None:
    result = await server.exec(["env"], env={"FARM_A": "x=y\nz", "HOME": "/elsewhere"}, timeout_s=WAIT_S)
    lines = out(result).splitlines()
    assert {"FARM_A=x=y", "z", "HOME=/elsewhere"} <= set(lines)
    assert sum(line.startswith("HOME=") for line in lines) == 1


async def test_program_is_found_in_its_own_path(server: ToolServer, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "only-here"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    result = await server.exec(["only-here"], env={"PATH": f"{program.parent}:/bin:/usr/bin"}, timeout_s=WAIT_S)
    assert out(result) == "found\n"


async def test_program_starts_with_clean_process_state(server: ToolServer) -> None:
    script = (
        "import os, signal\n"
        "print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:4])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(os.getsid(0) == os.getpid(), open('/proc/self/oom_score_adj').read().strip())\n"
        "print([line for line in open('/proc/self/status') if line.startswith('SigIgn')])\n"
    )
    # Python itself ignores SIGPIPE (13) and SIGXFSZ (25): `env` says nothing of them, so grep the shell's instead.
    lines = out(await server.exec([sys.executable, "-c", script], timeout_s=WAIT_S)).splitlines()
    assert lines[:3] == ["[0, 1, 2, 3]", "set()", "True 0"]
    assert (await sh(server, "grep SigIgn /proc/self/status")).split() == ["SigIgn:", "0000000000000000"]


async def test_large_stdin_arrives_whole(server: ToolServer) -> None:
    data = os.urandom(3_000_000)
    result = await server.exec(["cat"], stdin=data, timeout_s=WAIT_S, output_limit=4_000_000)
    assert result.stdout == Capture(data)


@pytest.mark.parametrize("reader", ["cat", "read line; echo $?", "head -c 1", "exec python3 -c 'input()'"])
async def test_empty_stdin_ends_at_once(server: ToolServer, reader: str) -> None:
    assert not (await server.exec(["sh", "-c", reader], timeout_s=WAIT_S)).timed_out


@pytest.mark.parametrize(
    ("argv", "cwd", "exit_code", "complaint"),
    [
        (["/no/such/program"], None, 127, b"/no/such/program: No such file or directory"),
        (["no-such-program"], None, 127, b"no-such-program: No such file or directory"),
        ([""], None, 127, b"No such file or directory"),
        (["/etc"], None, 126, b"/etc: Permission denied"),
        (["/etc/passwd"], None, 126, b"/etc/passwd: Permission denied"),
        (["true"], "/no/such/place", 127, b"/no/such/place: No such file or directory"),
        (["true"], "/etc/passwd", 126, b"/etc/passwd: Not a directory"),
        (["true", "x" * 3_000_000], None, 126, b"true: Argument list too long"),
    ],
)
async def test_start_failure_is_a_result(
    server: ToolServer, argv: list[str], cwd: str | None, exit_code: int, complaint: bytes
) -> None:
    result = await server.exec(argv, cwd=cwd, timeout_s=WAIT_S)
    assert result.exit_code == exit_code
    assert complaint in result.stderr.head


@pytest.mark.parametrize("argument", ["zero\0byte", "half \ud800 pair"])
async def test_unsendable_command_is_a_result(server: ToolServer, argument: str) -> None:
    assert (await server.exec(["echo", argument], timeout_s=WAIT_S)).exit_code == 126
    assert (await server.shell(argument, timeout_s=WAIT_S)).exit_code == 126
    await server.ping()


async def test_empty_argv_is_a_spec_error(server: ToolServer) -> None:
    with pytest.raises(SpecError, match="argv is empty"):
        await server.exec([], timeout_s=WAIT_S)
    with pytest.raises(SpecError, match="63 bytes"):
        await server.shell("true", session="x" * 64, timeout_s=WAIT_S)


async def test_undecodable_arguments_and_output_pass_unchanged(server: ToolServer) -> None:
    name = os.fsdecode(b"\xff\xfe\n")
    assert (await server.exec(["printf", "%s", name], timeout_s=WAIT_S)).stdout.head == b"\xff\xfe\n"
    everything = bytes(range(256)) * 4
    assert (await server.exec(["cat"], stdin=everything, timeout_s=WAIT_S)).stdout.head == everything


async def test_signal_death_is_128_plus_signal(server: ToolServer) -> None:
    result = await server.exec(["sh", "-c", "kill -SEGV $$"], timeout_s=WAIT_S)
    assert result.exit_code == 128 + signal.SIGSEGV


async def test_long_output_is_elided_and_spilled(server: ToolServer) -> None:
    result = await server.exec(["seq", "200000"], timeout_s=WAIT_S, output_limit=100)
    whole = "".join(f"{n}\n" for n in range(1, 200001)).encode()
    assert result.stdout == Capture(whole[:50], whole[-50:], len(whole) - 100)
    assert spilled(result) == whole


async def test_output_of_exactly_the_limit_is_whole(server: ToolServer) -> None:
    for length in (99, 100):
        result = await server.exec(["head", "-c", str(length), "/dev/zero"], timeout_s=WAIT_S, output_limit=100)
        assert (result.stdout, result.spill) == (Capture(bytes(length)), None)
    result = await server.exec(["head", "-c", "101", "/dev/zero"], timeout_s=WAIT_S, output_limit=100)
    assert result.stdout == Capture(bytes(50), bytes(50), 1)
    assert spilled(result) == bytes(101)


async def test_output_limit_may_be_zero(server: ToolServer) -> None:
    result = await server.exec(["echo", "x"], timeout_s=WAIT_S, output_limit=0)
    assert result.stdout == Capture(b"", b"", 2)
    assert spilled(result) == b"x\n"


async def test_endless_output_does_not_block_other_calls(server: ToolServer) -> None:
    endless = asyncio.create_task(server.exec(["yes"], timeout_s=1.0, output_limit=1000))
    while not endless.done():
        await server.ping()
    result = await endless
    assert (result.exit_code, result.timed_out, len(result.stdout.head), len(result.stdout.tail)) == (
        None,
        True,
        500,
        500,
    )
    assert len(spilled(result)) <= 64 * 1024 * 1024


@pytest.mark.parametrize(
    "escape",
    [
        "sleep MARK",
        "sleep MARK & wait",
        "setsid sleep MARK & wait",
        "(setsid sh -c 'sleep MARK & sleep MARK' &) ; sleep MARK",
        "trap '' TERM INT HUP; env -i setsid sh -c \"trap '' TERM; sleep MARK & wait\" & sleep MARK",
        "f() { (f &) ; sleep MARK; }; i=0; while [ $i -lt 40 ]; do i=$((i+1)); (setsid sleep MARK &); done; sleep MARK",
    ],
)
async def test_timeout_kills_process_tree(server: ToolServer, escape: str) -> None:
    mark = f"1234.{os.getpid()}{abs(hash(escape)) % 10**6}"
    result = await server.exec(["sh", "-c", escape.replace("MARK", mark)], timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert await gone(mark)


async def test_timeout_kills_growing_process_tree(server: ToolServer) -> None:
    mark = f"4321.{os.getpid()}"
    script = f"n=0; while [ $n -lt 300 ]; do n=$((n+1)); (setsid sleep {mark} &); done; echo grown; sleep {mark}"
    result = await server.exec(["sh", "-c", script], timeout_s=1.0)
    assert result.timed_out
    assert await gone(mark)


async def test_output_before_timeout_is_kept(server: ToolServer) -> None:
    result = await server.exec(["sh", "-c", "echo early; sleep 60"], timeout_s=2.0)
    assert (out(result), result.timed_out) == ("early\n", True)


async def test_background_process_with_stdout_does_not_delay(server: ToolServer) -> None:
    async with asyncio.timeout(WAIT_S):
        assert await sh(server, "sleep 600 & seq 20000 | tail -1; echo end", 300.0) == "20000\nend\n"


async def test_background_process_can_write_after_command(server: ToolServer, served: Served) -> None:
    await sh(server, "(for i in $(seq 3000); do echo some line of a log; done; touch finished) &")
    assert await eventually((served.home / "finished").exists)


async def test_program_with_closed_streams_runs_on(server: ToolServer) -> None:
    result = await server.exec(["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 7"], timeout_s=WAIT_S)
    assert (result.exit_code, out(result)) == (7, "")


async def test_hundred_concurrent_calls_succeed(server: ToolServer) -> None:
    calls = (server.exec(["sh", "-c", f"echo {n}; exit {n}"], timeout_s=WAIT_S) for n in range(100))
    results = await asyncio.gather(*calls)
    assert [(out(result), result.exit_code) for result in results] == [(f"{n}\n", n) for n in range(100)]


async def test_too_many_concurrent_calls_are_refused(server: ToolServer) -> None:
    mark = f"777.{os.getpid()}"
    calls = [asyncio.create_task(server.exec(["sleep", mark], timeout_s=600.0)) for _ in range(260)]
    assert await eventually(lambda: sum(call.done() for call in calls) == 4)
    assert running(mark) == 256
    for call in calls:
        call.cancel()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert Counter(map(type, ends)) == {SandboxGone: 4, asyncio.CancelledError: 256}
    assert await gone(mark)
    await server.ping()


async def test_cancelled_command_is_killed(server: ToolServer, served: Served) -> None:
    mark = f"888.{os.getpid()}"
    script = f"(setsid sleep {mark} &) ; touch started; sleep {mark}"
    call = asyncio.create_task(server.exec(["sh", "-c", script], timeout_s=600.0))
    assert await eventually((served.home / "started").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await gone(mark)
    assert await sh(server, "echo on") == "on\n"


async def test_replaced_working_directory_is_entered_again(server: ToolServer, served: Served) -> None:
    await sh(server, "cd /; rmdir $OLDPWD; mkdir $OLDPWD")
    assert await sh(server, "echo x > made; pwd") == f"{served.home}\n"
    assert await server.read_file("made") == b"x\n"


async def test_removed_working_directory_falls_back_to_root(server: ToolServer, served: Served) -> None:
    served.home.rmdir()
    assert await sh(server, "pwd") == "/\n"
    assert out(await server.shell("pwd", timeout_s=WAIT_S)) == "/\n"
    served.home.mkdir()


async def test_dead_server_fails_every_call(server: ToolServer, served: Served) -> None:
    calls = [asyncio.create_task(server.exec(["sleep", "3"], timeout_s=60.0)) for _ in range(3)]
    await server.ping()
    served.process.kill()
    for call in calls:
        with pytest.raises(SandboxGone):
            await call
    with pytest.raises(SandboxGone):
        await server.ping()


async def test_listener_with_wrong_pid_is_refused(served: Served) -> None:
    with pytest.raises(ProtocolError, match=f"not {os.getpid()}"):
        await ToolServer.connect(served.socket, expected_pid=os.getpid(), timeout_s=WAIT_S)


async def test_missing_listener_is_a_boot_error(tmp_path: Path) -> None:
    with pytest.raises(BootError, match="did not answer within"):
        await ToolServer.connect(tmp_path / "sock", expected_pid=None, timeout_s=0.05)
    with pytest.raises(BootError, match="No such file"):
        await ToolServer.connect(tmp_path / "none" / "sock", expected_pid=None, timeout_s=0.05)


async def test_idle_server_uses_little_memory(served: Served) -> None:
    """A thousand sandboxes' servers fit where one interpreter would."""
    await served.server.exec(["true"], timeout_s=WAIT_S)
    assert served.process.memory_info().rss < 2 * 1024 * 1024

"""Jobs: commands in the background, each on a terminal of its own, heard and typed to later."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from sandboxes.errors import JobError, SpecError
from sandboxes.interface import Capture, JobOutput
from sandboxes.toolserver import protocol
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.protocol import Op
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import Served, eventually, first_process, gone, ordinary, out, running, spilled
from tests.support.services import needs_root, require_program

WAIT_S = 60.0
QUIET_S = 0.02


@pytest.fixture
async def served(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Served]:
    async with ordinary(toolbox, tmp_path) as served:
        yield served


@pytest.fixture
def server(served: Served) -> ToolServer:
    return served.server


async def shell(server: ToolServer, command: str) -> str:
    return out(await server.shell(command, timeout_s=WAIT_S))


async def ended(server: ToolServer, job: int) -> tuple[str, int | None]:
    said = await server.job_output(job, wait_s=WAIT_S)
    return said.output.head.decode(), said.exit_code


async def heard(server: ToolServer, job: int, end: str) -> str:
    """What it says until that ends so: words may come one by one."""
    said = ""
    async with asyncio.timeout(WAIT_S):
        while not said.endswith(end):
            more = await server.job_output(job, wait_s=WAIT_S, quiet_s=QUIET_S)
            assert more.exit_code is None, said
            said += more.output.head.decode()
    return said


async def answer(server: ToolServer, job: int, typed: bytes, end: str = ">>> ") -> str:
    """What it says to what is typed, the echo of it included."""
    assert await server.job_input(job, typed) == len(typed)
    return await heard(server, job, end)


async def test_job_inherits_shell_state(server: ToolServer) -> None:
    await shell(
        server,
        "mkdir 'a place'; cd 'a place'; plain='one  two'; export SENT=3; unset HOME; list=([1]=x [7]='y z');"
        " declare -i n=4; declare -A map=([k]=v); f() { local x=$1; echo f $x $plain; }; shopt -s expand_aliases;"
        " alias say='echo said'; set -u; readonly fixed=5",
    )
    job = await server.start_job(
        'pwd; echo "$plain $SENT ${HOME-no home} ${list[*]} ${!list[*]} ${map[k]} $fixed"; f 1; n=n+1; echo $n; say so;'
        " env | grep -c ^SENT=; env | grep -c ^plain=; echo $none"
    )
    said, exit_code = await ended(server, job)
    place, values, function, number, alias, sent, kept, fault = said.splitlines()
    assert place.endswith("/a place")
    assert values == "one  two 3 no home x y z 1 7 v 5"
    assert (function, number, alias, sent, kept) == ("f 1 one two", "5", "said so", "1", "0")
    assert "none: unbound variable" in fault
    assert exit_code not in (0, None)
    assert await shell(server, "echo $n ${map[k]}; cd ..; rmdir 'a place'") == "4 v\n"


async def test_job_without_shell_starts_in_workdir(server: ToolServer, served: Served) -> None:
    job = await server.start_job("pwd; exit 7", session="never")
    assert await ended(server, job) == (f"{served.home}\n", 7)


async def test_job_starts_in_removed_directory(server: ToolServer) -> None:
    await shell(server, "mkdir doomed; cd doomed; rmdir ../doomed")
    said, exit_code = await ended(server, await server.start_job("cd ..; echo here"))
    assert (said.splitlines()[-1], exit_code) == ("here", 0)


async def test_output_is_returned_once_with_exit_code(server: ToolServer, served: Served) -> None:
    os.mkfifo(served.home / "go")
    job = await server.start_job("echo one; cat go; echo two; exit 3")
    assert await heard(server, job, "one\n") == "one\n"
    assert (await server.job_output(job)).output == Capture(b"")
    await shell(server, "echo go > go")
    assert await ended(server, job) == ("go\ntwo\n", 3)
    after = await server.job_output(job)
    assert (after.output, after.exit_code) == (Capture(b""), 3)
    assert after.duration_s == (await server.job_output(job)).duration_s


async def test_output_wait_ends_at_limit(server: ToolServer, served: Served) -> None:
    job = await server.start_job("while :; do echo more; echo more; touch begun; sleep 0.01; done")
    assert await eventually((served.home / "begun").exists)
    said = await server.job_output(job, wait_s=0.5, quiet_s=10)
    assert said.exit_code is None
    assert said.output.head.startswith(b"more\nmore\n")
    await server.end_job(job)


@pytest.mark.parametrize(
    ("command", "ready", "typed", "said"),
    [
        ("read -p 'name? ' name; echo \"hello $name\"", "name? ", b"you\n", "you\nhello you\n"),
        ("python3 -c \"print('got', input('> '))\"", "> ", b"42\n", "42\ngot 42\n"),
        ("cat; echo the end", "begun\n", b"line\n\x04", "line\nline\nthe end\n"),
        ("exec sleep 1000", "begun\n", b"\x03", "^C"),
        ("stty -echo; echo ready; read x; echo $x", "ready\n", b"secret\n", "secret\n"),
        ("test -t 0 -a -t 1 -a -t 2 && stty size < /dev/tty; read x", "40 120\n", b"\n", "\n"),
    ],
)
async def test_job_reads_typed_input(server: ToolServer, command: str, ready: str, typed: bytes, said: str) -> None:
    job = await server.start_job(f"echo begun; {command}")
    await heard(server, job, ready)
    assert await server.job_input(job, typed) == len(typed)
    assert (await ended(server, job))[0] == said


async def test_interactive_interpreter_can_be_used(server: ToolServer) -> None:
    job = await server.start_job("python3 -q -i")
    assert await heard(server, job, ">>> ") == ">>> "
    assert await answer(server, job, b"x = 6\n") == "x = 6\n>>> "
    assert await answer(server, job, b"x * 7\n") == "x * 7\n42\n>>> "
    await server.job_input(job, b"while True: pass\n\n")
    assert (await server.job_output(job, wait_s=0.3)).exit_code is None
    assert "KeyboardInterrupt" in await answer(server, job, b"\x03", "Interrupt\n>>> ")
    await server.job_input(job, b"exit(5)\n")
    assert (await ended(server, job))[1] == 5


async def test_interactive_git_add_can_be_used(server: ToolServer) -> None:
    require_program("git")
    await shell(
        server,
        "git init -q; git config user.name a; git config user.email b; seq 40 > f; git add f; git commit -qm 1;"
        " sed -i -e 1s/.*/top/ -e 40s/.*/end/ f",
    )
    job = await server.start_job("TERM=dumb git -c color.ui=auto add -p")
    assert "(1/2) Stage this hunk" in await heard(server, job, "? ")
    assert "(2/2) Stage this hunk" in await answer(server, job, b"n\n", "? ")
    await server.job_input(job, b"y\n")
    assert (await ended(server, job))[1] == 0
    assert (await shell(server, "git diff --cached | grep '^[+-][^+-]'")) == "-40\n+end\n"


async def test_terminal_passes_bytes_unchanged(server: ToolServer) -> None:
    noise = bytes(range(256)) * 40
    await server.write_file("noise", noise)
    said = await server.job_output(await server.start_job("cat noise"), wait_s=WAIT_S)
    assert said.output == Capture(noise)


async def test_long_job_output_is_elided_and_spilled(server: ToolServer) -> None:
    whole = "".join(f"{n}\n" for n in range(1, 100_001)).encode()
    said = await server.job_output(await server.start_job("seq 100000"), wait_s=WAIT_S)
    kept = said.output
    assert len(kept.head) + len(kept.tail) <= protocol.JOB_OUTPUT_MAX
    assert whole.startswith(kept.head)
    assert whole.endswith(kept.tail)
    assert len(kept.head) + kept.elided + len(kept.tail) == len(whole)
    assert spilled(said) == whole


async def test_unread_input_is_accepted_in_part(server: ToolServer) -> None:
    job = await server.start_job("sleep 1000")
    line = b"x" * 1000 + b"\n"
    taken = await server.job_input(job, line * 1000, timeout_s=0.3)
    assert 0 < taken < 1000 * len(line)
    assert await shell(server, "echo on") == "on\n"
    await server.end_job(job)


async def test_long_input_arrives_complete(server: ToolServer) -> None:
    lines = b"".join(b"line %d of many\n" % n for n in range(20_000))
    job = await server.start_job("stty -echo; echo ready; head -n 20000 | md5sum")
    await heard(server, job, "ready\n")
    assert await server.job_input(job, lines, timeout_s=WAIT_S) == len(lines)
    await server.write_file("lines", lines)
    assert (await ended(server, job))[0] == (await shell(server, "md5sum < lines"))


async def test_job_outlives_its_shell(server: ToolServer) -> None:
    job = await server.start_job('read x; echo "$x"')
    assert (await server.shell("sleep 1000", timeout_s=0.2)).timed_out
    await server.restart_shell()
    assert (await server.shell("exit", timeout_s=WAIT_S)).shell_lost
    assert await server.job_input(job, b"alive\n") == 6
    assert await ended(server, job) == ("alive\nalive\n", 0)


async def test_end_job_kills_process_tree(server: ToolServer) -> None:
    mark = f"4444.{os.getpid()}"
    job = await server.start_job(
        f"setsid sh -c 'sleep {mark} & sleep {mark}' & sleep {mark} & echo begun; sleep {mark}"
    )
    await heard(server, job, "begun\n")
    await server.end_job(job)
    assert (await ended(server, job))[1] == 137
    assert await gone(mark)
    await server.end_job(job)


async def test_orphans_of_job_run_on_with_output(server: ToolServer, served: Served) -> None:
    os.mkfifo(served.home / "go")
    job = await server.start_job("{ cat go; echo last words; } & echo gone")
    assert await ended(server, job) == ("gone\n", 0)
    await shell(server, "echo first > go")
    heard = b""
    async with asyncio.timeout(WAIT_S):
        while heard != b"first\nlast words\n":
            heard += (await server.job_output(job, wait_s=QUIET_S)).output.head


async def test_job_without_terminal_descriptors_runs_on(server: ToolServer, served: Served) -> None:
    job = await server.start_job("exec <&- >&- 2>&-; while [ ! -e go ]; do sleep 0.01; done; exit 9")
    assert (await server.job_output(job, wait_s=0.2)).exit_code is None
    (served.home / "go").touch()
    assert (await server.job_output(job, wait_s=WAIT_S)).exit_code == 9


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("exit 3", 3),
        ("exec sh -c 'exit 4'", 4),
        ("set -e; false; echo never", 1),
        ("kill -9 $$", 137),
        ("echo 'unterminated", 1),
        ("(", 1),
        ("no-such-command", 127),
        ("trap 'exit 6' EXIT; true", 6),
        ("eval() { :; }; unset() { exit 9; }; set() { exit 9; }; builtin exit 2", 2),
        ("", 0),
        ("# x", 0),
    ],
)
async def test_job_exit_code_is_its_commands(server: ToolServer, command: str, exit_code: int) -> None:
    said, code = await ended(server, await server.start_job(command))
    assert code == exit_code or (exit_code == 1 and code in (1, 2)), said


@pytest.mark.parametrize(
    "meddling",
    [
        'cd() { builtin cd "$@" && ls; }; eval() { exit 1; }; unset() { exit 1; }; exec() { exit 1; }',
        "set -euo pipefail",
        "readonly IFS BASH_ENV; export BASH_ENV=/nonexistent",
        "trap 'echo debug' DEBUG; trap 'echo error' ERR",
        "set -x",
        "shopt -s extdebug failglob nullglob; set -f",
        "set -o posix",
        "x=$(head -c 3000000 /dev/zero | tr '\\0' x)",
        "declare -n ref=ref2; declare -a empty; declare -l low=ABC",
        "exec 20>/dev/null 21>/dev/null 22>/dev/null",
        "__farm_job='echo forged'; __farm_state='echo forged'; __farm_wake='echo forged'",
    ],
)
async def test_mistreated_shell_still_gives_state_to_job(server: ToolServer, meddling: str) -> None:
    await server.shell(f"known=here; cd /; {meddling}", timeout_s=WAIT_S)
    said, exit_code = await ended(server, await server.start_job("echo $known $PWD"))
    assert "here /\n" in said
    assert "forged" not in said
    assert exit_code == 0
    assert (await server.shell("builtin echo on", timeout_s=WAIT_S)).stdout.head.splitlines().count(b"on") == 1


async def test_job_starts_without_state_of_silent_shell(server: ToolServer, served: Served) -> None:
    await shell(server, "lost=yes")
    await server.shell("trap 'sleep 1000' DEBUG", timeout_s=0.5)
    job = await server.start_job("echo ${lost-fresh}")
    assert await ended(server, job) == ("fresh\n", 0)
    assert await shell(server, "echo ${lost-fresh}") == "fresh\n"


async def test_running_jobs_are_limited_and_ended_dropped(server: ToolServer) -> None:
    first = await server.start_job("exit 1")
    assert (await ended(server, first))[1] == 1
    running = [await server.start_job("sleep 1000", session="s") for _ in range(31)]
    running.append(await server.start_job("sleep 1000"))
    with pytest.raises(JobError, match=f"there is no background job {first}"):
        await server.job_output(first)
    with pytest.raises(JobError, match="32 background jobs run already"):
        await server.start_job("true")
    await server.end_job(running[0])
    await server.job_output(running[0], wait_s=WAIT_S)
    assert await ended(server, await server.start_job("echo room")) == ("room\n", 0)
    for job in running[1:]:
        await server.end_job(job)


async def test_end_of_ended_job_kills_only_its_orphans(server: ToolServer, served: Served) -> None:
    """One after the other: of two who die at once nobody can tell who left what."""
    mark, spared = f"4444.{os.getpid()}", f"5555.{os.getpid()}"
    await shell(server, f"setsid -f sleep {spared}; exit")
    await server.exec(["sh", "-c", f"setsid sleep {spared} &"], timeout_s=WAIT_S)
    other = await server.start_job(f"setsid -f sleep {spared}; sleep {spared} & true")
    assert (await ended(server, other))[1] == 0
    apart = f"sleep {mark} & setsid sleep {mark} & touch up; until test -e go; do sleep 0.01; done"
    job = await server.start_job(f"setsid -f sh -c '{apart}'; sleep {mark} & until test -e up; do sleep 0.01; done")
    assert (await ended(server, job))[1] == 0
    await server.exec(["sh", "-c", f"setsid sleep {spared} &"], timeout_s=WAIT_S)
    (served.home / "go").touch()
    assert await eventually(lambda: running(mark) == 3)
    await server.end_job(job)
    assert await gone(mark)
    assert await eventually(lambda: running(spared) == 5)
    assert (await ended(server, job))[1] == 0
    await server.end_job(other)
    assert await eventually(lambda: running(spared) == 3)


async def test_end_job_kills_orphans_of_just_ended_process(server: ToolServer, served: Served) -> None:
    mark = f"6666.{os.getpid()}"
    job = await server.start_job(f"setsid -f sh -c 'setsid sleep {mark} & until test -e go; do sleep 0.01; done'")
    assert (await ended(server, job))[1] == 0
    assert await eventually(lambda: running(mark) == 1)
    served.process.suspend()
    try:
        ending = asyncio.create_task(server.end_job(job))
        await asyncio.sleep(0)  # it has been asked before that one dies
        (served.home / "go").touch()
        assert await eventually(
            lambda: any(child.status() == psutil.STATUS_ZOMBIE for child in served.process.children())
        )
    finally:
        served.process.resume()
    await ending
    assert await gone(mark)


async def test_impossible_job_calls_raise_errors(server: ToolServer) -> None:
    for call in (server.job_output(5), server.job_input(5, b"x"), server.end_job(5)):
        with pytest.raises(JobError, match="there is no background job 5"):
            await call
    with pytest.raises(JobError, match="holds a zero byte"):
        await server.start_job("a\0b")
    job = await server.start_job("true")
    await ended(server, job)
    with pytest.raises(JobError, match="takes no more input: it has ended"):
        await server.job_input(job, b"x")


async def test_repeated_start_and_read_happen_once(server: ToolServer, served: Served) -> None:
    started = [await server.start_job("echo ran >> notes; echo said", call_id="start") for _ in range(3)]
    assert len(set(started)) == 1
    said = [await server.job_output(started[0], wait_s=WAIT_S, call_id="read") for _ in range(3)]
    assert said[0] == said[1] == said[2]
    assert said[0].output == Capture(b"said\n")
    assert (await server.job_output(started[0])).output == Capture(b"")
    assert (served.home / "notes").read_text() == "ran\n"
    with pytest.raises(SpecError, match="belongs to a different call"):
        await server.start_job("echo other", call_id="start")


async def test_cancelled_read_loses_no_output(server: ToolServer, served: Served) -> None:
    os.mkfifo(served.home / "go")
    job = await server.start_job("echo one; cat go")
    reading = asyncio.create_task(server.job_output(job, wait_s=600))
    await asyncio.sleep(0)  # it has been asked when it is cancelled
    await shell(server, "true")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await shell(server, "echo two > go")
    assert await ended(server, job) == ("one\ntwo\n", 0)


async def test_concurrent_reads_take_turns(server: ToolServer) -> None:
    job = await server.start_job("echo one; sleep 0.3; echo two")
    heard = await asyncio.gather(*(server.job_output(job, wait_s=WAIT_S) for _ in range(3)))
    assert b"".join(said.output.head for said in heard) == b"one\ntwo\n"
    assert {said.exit_code for said in heard} == {0}


@needs_root
async def test_job_without_terminal_uses_pipes(toolbox: Toolbox, tmp_path: Path) -> None:
    async with first_process(toolbox, tmp_path) as served:
        job = await served.server.start_job("read x; echo got $x; /.farm/bin/busybox tty; exit 4")
        assert await served.server.job_input(job, b"it\n") == 3
        assert await ended(served.server, job) == ("got it\nnot a tty\n", 4)


@needs_root
async def test_fake_ptmx_does_not_block_server(toolbox: Toolbox, tmp_path: Path) -> None:
    async with first_process(toolbox, tmp_path) as served:
        busybox = "/.farm/bin/busybox"
        for made in (f"{busybox} mkfifo /dev/ptmx", "echo > /dev/ptmx", f"{busybox} ln -s ptmx /dev/ptmx"):
            await shell(served.server, f"{busybox} mkdir -p /dev; {busybox} rm -f /dev/ptmx; {made}")
            assert await ended(served.server, await served.server.start_job("echo on")) == ("on\n", 0)


@needs_root
async def test_kill_all_ends_jobs(toolbox: Toolbox, tmp_path: Path) -> None:
    async with first_process(toolbox, tmp_path) as served:
        job = await served.server.start_job("read x")
        await served.server.kill_all()
        assert (await served.server.job_output(job, wait_s=WAIT_S)).exit_code == 137


@pytest.mark.parametrize("op", [Op.START, Op.LISTEN, Op.TYPE, Op.END, Op.LOG_IN])
async def test_malformed_job_frame_disconnects_client(served: Served, op: Op) -> None:
    reader, writer = await asyncio.open_unix_connection(served.socket)
    writer.write(protocol.frame(1, op, b"\xff"))
    async with asyncio.timeout(WAIT_S):
        await reader.read()
        assert reader.at_eof()
    writer.close()
    assert await shell(served.server, "echo on") == "on\n"


def test_job_output_is_decoded() -> None:
    nothing = struct.pack("<IIQ", 0, 0, 0)
    stdout = protocol.blob(b"h") + protocol.blob(b"t") + struct.pack("<Q", 5)
    body = struct.pack("<IBQ", 0, 4, 1500) + protocol.blob(b"") + b"\0" + stdout + nothing
    assert protocol.job_output(body) == JobOutput(Capture(b"h", b"t", 5), None, 0.0015)

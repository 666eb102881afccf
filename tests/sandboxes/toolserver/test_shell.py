"""Shell sessions: what survives between commands, and what becomes of a shell that is mistreated."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.interface import Capture, ExecResult
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import Served, eventually, gone, ordinary, out, spilled

WAIT_S = 60.0


@pytest.fixture
async def served(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Served]:
    async with ordinary(toolbox, tmp_path) as served:
        yield served


@pytest.fixture
def server(served: Served) -> ToolServer:
    return served.server


async def run(server: ToolServer, command: str, timeout_s: float = WAIT_S, session: str = "main") -> ExecResult:
    return await server.shell(command, session=session, timeout_s=timeout_s)


async def say(server: ToolServer, command: str, session: str = "main") -> str:
    result = await run(server, command, session=session)
    assert (result.shell_lost, result.timed_out) == (False, False)
    return out(result)


async def test_shell_state_survives_between_commands(server: ToolServer) -> None:
    await say(server, "cd /; a=1; export B=2; f() { echo f$1; }; declare -A m=([k]=v); set -o pipefail; exec 7>&1")
    said = await say(server, 'pwd; echo $a $B "${m[k]}"; f 3; echo seven >&7; env | grep ^B=; false | true; echo $?')
    assert said == "/\n1 2 v\nf3\nseven\nB=2\n1\n"


async def test_shell_reports_exit_codes(server: ToolServer) -> None:
    for command, code in [("true", 0), ("false", 1), ("(exit 42)", 42), ("no-such-command", 127), ("", 0), ("# x", 0)]:
        result = await run(server, command)
        assert (result.exit_code, result.shell_lost) == (code, False)


async def test_command_sees_status_of_previous_command(server: ToolServer) -> None:
    for command, code in [
        ("false", 1),
        ("(exit 42)", 42),
        ("true", 0),
        ("no-such-command", 127),
        ("set -e; ! true", 1),
    ]:
        await run(server, command)
        assert await say(server, "echo $?") == (f"{code}\n" if "-e" not in command else "0\n")


async def test_shell_streams_are_merged(server: ToolServer) -> None:
    result = await run(server, "echo 1; echo 2 >&2; echo 3")
    assert (out(result), result.stderr) == ("1\n2\n3\n", Capture(b""))


async def test_sessions_are_independent(server: ToolServer) -> None:
    assert await say(server, "x=main; echo $x") == "main\n"
    assert await say(server, "echo ${x-unset}", session="other") == "unset\n"
    assert await say(server, "echo $x") == "main\n"


async def test_commands_of_one_session_run_in_order(server: ToolServer) -> None:
    calls = [run(server, f"sleep 0.0{9 - n}; echo {n}") for n in range(10)]
    assert [out(result) for result in await asyncio.gather(*calls)] == [f"{n}\n" for n in range(10)]


async def test_sessions_run_concurrently(server: ToolServer, served: Served) -> None:
    os.mkfifo(served.home / "meet")
    async with asyncio.timeout(WAIT_S):
        heard, _ = await asyncio.gather(
            run(server, "cat meet", session="one"), run(server, "echo met > meet", session="two")
        )
    assert out(heard) == "met\n"


@pytest.mark.parametrize(
    ("command", "exit_code", "said"),
    [
        ("echo a; exit 5", 5, "a\n"),
        ("exec sh -c 'echo b; exit 6'", 6, "b\n"),
        ("set -e; echo c; false; echo never", 1, "c\n"),
        ("kill -9 $$", 137, ""),
        ("set -u; echo $unset_name; echo never", 127, None),
        ("trap 'echo bye' EXIT; exit 0", 0, "bye\n"),
        ("break 99", 0, ""),
    ],
)
async def test_ended_shell_is_reported_lost(server: ToolServer, command: str, exit_code: int, said: str | None) -> None:
    await say(server, "before=1")
    result = await run(server, command)
    assert (result.exit_code, result.shell_lost, result.timed_out) == (exit_code, True, False)
    assert said is None or out(result) == said
    assert await say(server, "echo ${before-fresh}") == "fresh\n"


@pytest.mark.parametrize(
    "command",
    [
        "continue",
        "continue 99",
        "break",
        "return 3",
        "shift 99; set -- a b c",
        "set -x",
        "set -f; IFS=,; OPTIND=9",
        "TMOUT=1",
        "exec 0<&- 1>/dev/null; exec 1>&2",
        "exec 10>/dev/null 11>/dev/null 12>/dev/null 13</dev/null",
        "exec 20>/dev/null 21>/dev/null 22>/dev/null",
        "trap 'true' DEBUG; trap 'true' ERR; trap 'true' RETURN; trap '' INT TERM HUP CHLD",
        "ulimit -n 64",
        "set -o posix",
        "shopt -s extdebug nullglob failglob",
        "printf() { command false; }; read() { command false; }; eval() { :; }; exit() { :; }",
        "alias printf=false read=false eval=false; shopt -s expand_aliases",
        "unset HOME PATH IFS PWD; PATH=/bin:/usr/bin",
        "readonly IFS",
        "LC_ALL=en_US.UTF-8; LANG=C.UTF-8",
        "umask 777; umask 022",
        "mkdir doomed; cd doomed; rmdir ../doomed",
        "PROMPT_COMMAND='exit 9'; PS1='$(exit)'; PS4='$(exit)'; BASH_ENV=/dev/full ENV=/dev/full",
        ":() { false; }; [() { false; }",
        "IFS=0123456789",
        "kill() { exit; }; trap() { exit; }; cd() { false; }; wait() { exit; }; test() { exit; }; declare() { exit; }",
        "command() { exit; }; unset() { exit; }; return() { exit; }; true() { exit; }",
        "exec > log; echo to the file; exec > /dev/full; echo lost; exec 1>&2",
        "sleep 0.05 & fg; bg; suspend; jobs; wait",
        "set -m; sleep 0.05 & fg; wait; set +m",
        "sleep 100 & kill -STOP $!; jobs; kill -9 $!",
        "stty; stty -echo; tput cols; tty",
        "ulimit -f 0; ulimit -c 0; ulimit -u 1000",
        "hash -p /nonexistent sh; hash -r; enable -n kill",
        "trap 'echo never' CHLD EXIT; trap - EXIT",
        "coproc cat; disown -a",
        "exec 2>&-",
        "false; false | true; ((1/1))",
        "}",
        "echo 'unterminated",
        'echo "unterminated',
        "if true; then",
        "cat <<EOF\nno end",
        "(",
        "`",
        "case x in",
        "$(",
        "echo $((1/0))",
        "function",
        ";;",
    ],
)
async def test_mistreated_shell_runs_on(server: ToolServer, command: str) -> None:
    result = await run(server, command)
    assert (result.shell_lost, result.timed_out) == (False, False)
    await asyncio.sleep(1.2 if "TMOUT" in command else 0)  # the time that the setting names must pass
    assert (await say(server, "x=here; echo a >&2; exec 2>&1; echo $x")).endswith("here\n")
    assert (await run(server, "sh -c 'exec false'")).exit_code == 1


@pytest.mark.parametrize(
    "command",
    [
        "set -n",
        "trap 'sleep 1000' DEBUG",
        "trap '' TERM INT HUP; while :; do :; done",
        "coproc cat; cat <&${COPROC[0]}",
        "exec -a bash sleep 1000",
        "mkfifo never; exec < never",
    ],
)
async def test_broken_shell_is_killed_at_timeout(server: ToolServer, command: str) -> None:
    result = await run(server, command, timeout_s=0.5)
    assert result.timed_out or not result.shell_lost
    if not result.timed_out:
        assert (await run(server, "true", timeout_s=0.5)).timed_out
    assert await say(server, "echo fresh") == "fresh\n"


async def test_redirected_shell_output_lasts_until_restart(server: ToolServer, served: Served) -> None:
    assert await say(server, "exec > log 2>&1; echo one") == ""
    assert await say(server, "echo two") == ""
    assert (served.home / "log").read_text() == "one\ntwo\n"
    await server.restart_shell()
    assert await say(server, "echo three") == "three\n"


async def test_shell_with_closed_output_runs_on(server: ToolServer) -> None:
    assert await say(server, "exec >&- 2>&-; true") == ""
    assert (await run(server, "echo lost; exit_code() { return 3; }; exit_code")).exit_code == 3
    assert await say(server, "cat /proc/self/cmdline > here; pwd > there") == ""


@pytest.mark.parametrize(
    "output",
    [
        b"no line end",
        pytest.param(b"x" * 1_000_000, id="a long line"),
        b"a\r\nb\rc\r\n",
        b"\x1b[31mred\x1b[0m",
        b"\0a\0",
        "é".encode()[:1],
        b"\n" * 5000,
    ],
)
async def test_shell_output_is_unchanged(server: ToolServer, output: bytes) -> None:
    await server.write_file("output", output)
    assert (await run(server, "cat output")).stdout == Capture(output)


async def test_command_has_no_terminal(server: ToolServer) -> None:
    result = await run(
        server, "python3 -c 'input()'; echo $?; read -p 'name? ' x < /dev/tty; echo $?; test -t 0; echo $?"
    )
    assert "EOFError" in out(result)
    assert out(result).splitlines()[-1] == "1"
    assert not result.timed_out


async def test_unterminated_here_document_is_accepted(server: ToolServer) -> None:
    lines = "\n".join(f"line {n}" for n in range(300_000))
    result = await run(server, f"wc -l <<'EOF'\n{lines}\n")
    assert out(result).endswith("300000\n")
    assert "here-document" in out(result)
    assert not result.shell_lost


@pytest.mark.parametrize(
    ("settings", "command", "said"),
    [
        ("set -x", "x=1; echo traced", "++ x=1\n++ echo traced\ntraced\n"),
        ("set -v", "echo a\necho b", "echo a\na\necho b\nb\n"),
        ("set -xv", "echo a\necho b", "echo a\n++ echo a\na\necho b\n++ echo b\nb\n"),
        ("PS4='+$(echo $LINENO) '; set -x", "echo a", "++1 echo a\na\n"),
        ("trap 'echo D $LINENO' DEBUG", "echo a; false\necho b", "D 1\na\nD 1\nD 2\nb\n"),
        ("trap 'echo failed $BASH_COMMAND in $LINENO' ERR", "echo a\nfalse", "a\nfailed false in 2\n"),
        (
            "trap 'echo \"it'\\''s\"\n:' DEBUG; trap 'echo E\n\n' ERR",
            "false",
            "it's\nit's\nE\n",
        ),  # the second by E's own
        ("trap 'echo D' DEBUG", "trap -p; trap - DEBUG; true", "D\ntrap -- 'echo D' DEBUG\nD\n"),
        ("trap 'echo D' DEBUG; set -x", "f() { true; }; f", "+++ echo D\nD\n++ f\n++ true\n"),
    ],
)
async def test_traces_and_traps_show_only_the_command(
    server: ToolServer, settings: str, command: str, said: str
) -> None:
    for _ in range(2):
        await run(server, settings)
        await run(server, "")
        assert out(await run(server, command)) == said
        await run(server, "set +x +v; trap - DEBUG ERR")
    assert await say(server, "echo ${-//[^xv]/}; trap -p ERR DEBUG") == "\n"


async def test_traps_and_traces_survive_job_start(server: ToolServer) -> None:
    await run(server, "trap 'echo E' ERR; set -x")
    for _ in range(2):
        await server.start_job("true")
    assert await say(server, "false") == "++ false\n+++ echo E\nE\n"


@pytest.mark.parametrize("command", ["builtin() { :; }", "builtin() { false; }", "enable -n printf"])
async def test_shell_with_hidden_builtins_reports_and_ends(server: ToolServer, command: str) -> None:
    result = await run(server, f"echo before; {command}")
    assert (result.shell_lost, result.timed_out) == (True, False)
    assert out(result).startswith("before\n")
    assert out(result).endswith("a function, or enable -n, hides builtins that this shell needs\n")
    assert await say(server, "echo fresh") == "fresh\n"


async def test_command_has_no_private_descriptors(server: ToolServer) -> None:
    script = "import os; print([fd for fd in range(3, 256) if os.path.exists(f'/proc/self/fd/{fd}')])"
    assert (await say(server, f'python3 -c "{script}"')).strip() in ("[]", "[3]")


async def test_shell_stdin_is_empty(server: ToolServer) -> None:
    assert await say(server, "cat; read x; echo $?; python3 -c 'import sys; print(sys.stdin.read())'") == "1\n\n"


async def test_huge_command_arrives_complete(server: ToolServer) -> None:
    lines = "\n".join(f"line {n} of 'a' \"document\" $x `y`" for n in range(60_000))
    assert len(lines) > 1_500_000
    assert await say(server, f"cat <<'EOF' | md5sum; echo done\n{lines}\nEOF") == (
        await say(server, f"md5sum <<'EOF'; echo done\n{lines}\nEOF")
    )
    assert await say(server, f"wc -l <<'EOF'\n{lines}\nEOF") == "60000\n"


async def test_undecodable_bytes_pass_unchanged(server: ToolServer) -> None:
    raw = bytes(range(1, 256)).replace(b"'", b"")
    result = await run(server, f"printf %s '{os.fsdecode(raw)}'")
    assert result.stdout == Capture(raw)
    noise = os.urandom(100_000)
    await server.write_file("noise", noise)
    assert (await run(server, "cat noise")).stdout == Capture(noise)


async def test_long_shell_output_is_elided_and_spilled(server: ToolServer) -> None:
    result = await server.shell("seq 100000", timeout_s=WAIT_S, output_limit=20)
    whole = "".join(f"{n}\n" for n in range(1, 100001)).encode()
    assert result.stdout == Capture(whole[:10], whole[-10:], len(whole) - 20)
    assert spilled(result) == whole
    assert await say(server, "echo next") == "next\n"


async def test_background_process_with_stdout_does_not_delay(server: ToolServer) -> None:
    async with asyncio.timeout(WAIT_S):
        result = await run(server, "sleep 300 & seq 10000; echo end", 200.0)
    assert out(result) == "".join(f"{n}\n" for n in range(1, 10001)) + "end\n"


async def test_endless_background_output_does_no_harm(server: ToolServer) -> None:
    result = await server.shell("yes & echo started $!", timeout_s=WAIT_S, output_limit=1000)
    assert (result.exit_code, result.timed_out) == (0, False)
    result = await server.shell("kill %1; wait; echo over", timeout_s=WAIT_S, output_limit=1000)
    assert result.stdout.tail.endswith(b"over\n") or result.stdout.head.endswith(b"over\n")
    assert (await run(server, "jobs; echo clear")).stdout.head.endswith(b"clear\n")


async def test_background_output_comes_with_next_command(server: ToolServer, served: Served) -> None:
    await say(server, "{ until [ -e go ]; do sleep 0.01; done; echo from the job; touch told; } &")
    (served.home / "go").touch()
    assert await eventually((served.home / "told").exists)
    assert await say(server, "wait; echo next") == "from the job\nnext\n"
    assert await say(server, "sleep 100 & jobs -p | wc -l; kill %%; wait") == "1\n"


async def test_daemon_outlives_command_and_shell(server: ToolServer, served: Served) -> None:
    await say(server, "setsid sh -c 'sleep 0.3; touch alive' >/dev/null 2>&1 < /dev/null &")
    assert (await run(server, "exit")).shell_lost
    assert await eventually((served.home / "alive").exists)


async def test_timeout_kills_tree_and_loses_shell(server: ToolServer) -> None:
    mark = f"1111.{os.getpid()}"
    escape = f"(setsid sh -c 'sleep {mark} & sleep {mark}' &) ; env -i setsid sleep {mark} & echo said; sleep {mark}"
    await say(server, "true")
    result = await run(server, escape, timeout_s=2.0)
    assert (result.exit_code, result.timed_out, result.shell_lost, out(result)) == (None, True, True, "said\n")
    assert await gone(mark)
    assert await say(server, "echo fresh") == "fresh\n"


async def test_stopped_shell_is_killed_at_timeout(server: ToolServer) -> None:
    result = await run(server, "kill -STOP $$", timeout_s=0.5)
    assert (result.timed_out, result.shell_lost) == (True, True)
    assert await say(server, "echo fresh") == "fresh\n"


async def test_restart_kills_shell_and_its_command(server: ToolServer, served: Served) -> None:
    mark = f"2222.{os.getpid()}"
    await say(server, "x=old")
    call = asyncio.create_task(run(server, f"touch running; sleep {mark}", 600.0))
    assert await eventually((served.home / "running").exists)
    await server.restart_shell()
    result = await call
    assert (result.exit_code, result.shell_lost) == (137, True)
    assert await gone(mark)
    assert await say(server, "echo ${x-new}") == "new\n"
    await server.restart_shell("never started")


async def test_cancelled_command_loses_the_shell(server: ToolServer, served: Served) -> None:
    mark = f"3333.{os.getpid()}"
    call = asyncio.create_task(run(server, f"x=old; touch running; sleep {mark}", 600.0))
    assert await eventually((served.home / "running").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await say(server, "echo ${x-new}") == "new\n"
    assert await gone(mark)


async def test_number_of_sessions_is_limited(server: ToolServer) -> None:
    for n in range(32):
        assert not (await run(server, "true", session=f"s{n}")).shell_lost
    refused = await run(server, "true", session="one too many")
    assert (refused.exit_code, refused.shell_lost) == (126, True)
    assert "too many shell sessions" in out(refused)
    assert await say(server, "echo on", session="s0") == "on\n"


async def test_writes_to_private_descriptors_harm_only_session(server: ToolServer) -> None:
    """A subshell still holds copies of them; what it writes there may end a command early, and no more."""
    forge = "for fd in /proc/$BASHPID/fd/*; do echo 77 > $fd; done 2>/dev/null; head -c 100000 /dev/zero > /dev/null"
    await run(server, f"( {forge} )", timeout_s=2.0)
    assert await say(server, "echo untouched", session="other") == "untouched\n"
    await server.restart_shell()
    assert await say(server, "echo fresh") == "fresh\n"

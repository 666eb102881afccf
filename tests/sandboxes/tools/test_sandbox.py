"""The tools in a real sandbox, where what they promise needs processes, time or hostile files."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes.errors import PathError, SandboxGone
from sandboxes.interface import Runtime, Sandbox
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.tools import ToolErrorKind, ToolResult, Toolset
from sandboxes.tools.result_limit import MAX_CHARS

EDIT = "str_replace_based_edit_tool"
BUSYBOX = "/.farm/bin/busybox"


class Hands:
    """A toolset and a sandbox: ``await hands(name, key=value)``."""

    def __init__(self, sandbox: Sandbox, tools: Toolset) -> None:
        self.sandbox = sandbox
        self.tools = tools

    async def __call__(self, name: str, **arguments: Any) -> ToolResult:
        return await self.within(30, name, **arguments)

    async def within(self, limit_s: float, name: str, **arguments: Any) -> ToolResult:
        return await self.tools.call(self.sandbox, name, json.dumps(arguments), timeout_s=limit_s)


@pytest.fixture
async def hands(docker_runtime: Runtime, test_image: str) -> AsyncIterator[Hands]:
    async with docker_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        yield Hands(sandbox, Toolset.of())


pytestmark = pytest.mark.docker


async def until_dead(hands: Hands, pattern: str) -> None:
    """Nobody has such a command line any more: who is killed is dead when the kernel has seen to it."""
    async with asyncio.timeout(60):
        while (
            await hands("bash", command=f"{BUSYBOX} ps -o args | {BUSYBOX} grep -c '{pattern}'")
        ).content != "0\n[exit code 1]":
            pass


async def test_timeout_kills_process_tree_and_reports_it(hands: Hands) -> None:
    command = f"{BUSYBOX} setsid {BUSYBOX} sleep 4242 & cd /; X=1; {BUSYBOX} sleep 4242"
    result = await hands("bash", command=command, timeout_s=0.5)
    assert result.timed_out
    assert result.exit_code is None
    assert result.error_kind is ToolErrorKind.TIMEOUT
    assert "[timed out after 0.5 s: the shell's whole process tree was killed]" in result.content
    assert "[the shell ended with it; the next command starts in a fresh one, in /repo]" in result.content
    after = await hands("bash", command='pwd; echo "X=$X"')
    assert after.content == "/repo\nX=\n[exit code 0]"
    await until_dead(hands, "[s]leep 4242")


async def test_failed_patch_leaves_no_directories(hands: Hands) -> None:
    """The first file can be written; the second cannot, for its place is taken once there is the first."""
    await hands("bash", command="mkdir there; echo x > there/x")
    patches = Toolset.of(["codex"])
    text = "*** Begin Patch\n*** Add File: there/a/b/one\n+1\n*** Add File: there/a/b/one/two\n+2\n*** End Patch"
    result = await patches.call(hands.sandbox, "apply_patch", json.dumps({"input": text}), timeout_s=30)
    assert "nothing was changed" in result.content
    assert (await hands("bash", command="find .")).content == ".\n./there\n./there/x\n[exit code 0]"


async def test_callers_timeout_limits_the_policys_timeout(hands: Hands) -> None:
    result = await hands.within(0.3, "bash", command=f"{BUSYBOX} sleep 4242", timeout_s=600)
    assert result.timed_out
    assert "timed out after 0.3 s" in result.content


async def test_long_output_keeps_ends_and_names_file(hands: Hands) -> None:
    result = await hands("bash", command=f"{BUSYBOX} seq 200000")
    assert result.truncated
    assert result.exit_code == 0
    assert len(result.content) <= MAX_CHARS
    assert result.content.startswith("1\n2\n3\n")
    assert result.content.endswith("\n199999\n200000\n[exit code 0]")
    elided = re.search(
        r"\[\.\.\. ([\d,]+) bytes elided; the full output, 64 MiB at most, is in (\S+) \.\.\.\]", result.content
    )
    assert elided
    whole = "".join(f"{n}\n" for n in range(1, 200_001)).encode()
    shown = len(result.content) - len(elided[0]) - 2 - len("[exit code 0]")
    assert shown + int(elided[1].replace(",", "")) == len(whole)
    assert await hands.sandbox.read_file(elided[2]) == whole


async def test_heredoc_writes_document_of_megabytes(hands: Hands) -> None:
    lines = "".join(f"line {n} of 'a' \"document\" $x `y` é\n" for n in range(80_000))
    written = await hands("bash", command=f"{BUSYBOX} cat > document <<'END'\n{lines}END\n{BUSYBOX} wc -l < document")
    assert written.content == "80000\n[exit code 0]"
    assert await hands.sandbox.read_file("document") == lines.encode()
    assert len(lines) > 3_000_000


async def test_concurrent_calls_to_one_shell_are_serialized(hands: Hands) -> None:
    results = await asyncio.gather(
        *(hands("bash", command=f"n=$(( ${{n:-0}} + 1 )); echo $n; : {i}") for i in range(8))
    )
    assert sorted(result.content for result in results) == [f"{n}\n[exit code 0]" for n in range(1, 9)]


async def test_concurrent_edits_of_one_file_all_apply(hands: Hands) -> None:
    await hands(EDIT, command="create", path="a.txt", file_text="top\n")
    results = await asyncio.gather(
        *(hands(EDIT, command="insert", path="a.txt", insert_line=1, insert_text=f"line {n}") for n in range(8))
    )
    assert [result.error_kind for result in results] == [None] * 8
    assert sorted(await hands.sandbox.read_file("a.txt")) == sorted(
        b"top\n" + b"".join(b"line %d\n" % n for n in range(8))
    )


async def test_edit_keeps_file_mode_and_symlink(hands: Hands) -> None:
    await hands("bash", command=f"echo one > real; {BUSYBOX} chmod 755 real; {BUSYBOX} ln -s real link")
    assert (await hands(EDIT, command="str_replace", path="link", old_str="one", new_str="two")).error_kind is None
    shown = await hands("bash", command=f"{BUSYBOX} cat real; {BUSYBOX} stat -c %a real; {BUSYBOX} readlink link")
    assert shown.content == "two\n755\nreal\n[exit code 0]"


async def test_edit_through_symlink_stays_in_sandbox(either_runtime: Runtime, test_image: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host\n")
    async with either_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        hands = Hands(sandbox, Toolset.of())
        for number, target in enumerate((str(secret), "../" * 20 + str(secret), f"/proc/1/root{secret}")):
            await sandbox.write_link(f"/repo/link{number}", target)
            path = f"link{number}"
            for arguments in (
                {"command": "view"},
                {"command": "str_replace", "old_str": "host", "new_str": "guest"},
                {"command": "insert", "insert_line": 0, "insert_text": "x"},
                {"command": "create", "file_text": "x"},
            ):
                assert "of the host" not in (await hands(EDIT, path=path, **arguments)).content
        await sandbox.write_link("/repo/toolbox", "/.farm/bin/bash")
        refused = await hands(EDIT, command="create", path="toolbox", file_text="x")
        assert (refused.error_kind, refused.content) == (ToolErrorKind.REFUSED, "error: toolbox: Read-only file system")
    assert secret.read_text() == "of the host\n"


@pytest.mark.parametrize("command", ["true; exec sleep 1000", "setsid sleep 1000 & disown; sleep 1000 & sleep 1000"])
async def test_job_has_terminal_under_either_runtime(either_runtime: Runtime, test_image: str, command: str) -> None:
    async with either_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        hands = Hands(sandbox, Toolset.of())
        asked = "test -t 0 -a -t 1 && read -p 'name? ' name && echo \"hello $name\" > /dev/tty"
        await hands("bash", command=f"{asked}; {command}", background=True)
        said = (await hands("bash", job=1, input="you\n")).content
        async with asyncio.timeout(30):
            while "hello you" not in said:
                said += (await hands("bash", job=1, wait_s=0.1)).content
        assert "[job 1 runs still, after" in said
        assert "[job 1 ended with exit code 137" in (await hands("bash", job=1, kill=True)).content
        await until_dead(hands, "[s]leep 1000")


async def test_job_without_free_terminal_uses_pipes(oci_runtime: Runtime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image, workdir="/repo")) as sandbox:
        hands = Hands(sandbox, Toolset.of())
        await hands("bash", command="for i in {1..80}; do exec {fd}<>/dev/ptmx || break; done 2>/dev/null")
        await hands(
            "bash", command="test -t 0; echo terminal $?; read x; echo got $x", background=True, session="other"
        )
        heard = await hands("bash", job=1, input="it\n", wait_s=20)
        assert "got it\n[job 1 ended with exit code 0" in heard.content
        await hands("bash", restart=True)
        again = await hands("bash", command="test -t 0; echo terminal $?", background=True)
        assert "terminal 0\n" in again.content + (await hands("bash", job=2, wait_s=20)).content


@pytest.mark.parametrize("command", ["view", "str_replace", "create"])
async def test_special_file_is_refused_without_blocking(hands: Hands, command: str) -> None:
    await hands("bash", command=f"{BUSYBOX} mkfifo pipe; {BUSYBOX} ln -s /dev/zero zero")
    of_command: dict[str, dict[str, str]] = {
        "view": {},
        "str_replace": {"old_str": "a", "new_str": "b"},
        "create": {"file_text": "x"},
    }
    for path in ("pipe", "zero"):
        result = await hands(EDIT, command=command, path=path, **of_command[command])
        assert result.error_kind is ToolErrorKind.REFUSED, result
        assert result.content.startswith(f"error: {path}")


async def test_huge_file_is_refused_and_long_paged(hands: Hands) -> None:
    await hands(
        "bash", command=f"{BUSYBOX} yes 'a line' | {BUSYBOX} head -c 9000000 > huge; {BUSYBOX} seq 100000 > long"
    )
    huge = await hands(EDIT, command="view", path="huge")
    assert huge.content == "error: huge: has more than 8 MiB; use bash (sed -n, head, tail) or grep"
    long = await hands(EDIT, command="view", path="long")
    assert long.truncated
    assert len(long.content) <= MAX_CHARS
    cut = re.search(r"\n\[lines (\d+) to 100000 of 100000 are not shown: use view_range\]$", long.content)
    assert cut
    assert f"\n{int(cut[1]) - 1:6}\t{int(cut[1]) - 1}\n[" in long.content
    rest = await hands(EDIT, command="view", path="long", view_range=[99_999, -1])
    assert rest.content == " 99999\t99999\n100000\t100000"


async def test_undecodable_bytes_shorten_the_page(hands: Hands) -> None:
    await hands.sandbox.write_file("mixed", (b"caf\xe9" * 5 + b"\n") * 2000 + "é\n".encode())
    page = await hands(EDIT, command="view", path="mixed")
    assert len(page.content) <= MAX_CHARS
    shown, _, note = page.content.rpartition("\n")
    last = len(shown.split("\n"))
    assert shown.endswith(f"\n{last:6}\t" + r"caf\xe9" * 5)
    assert note == f"[lines {last + 1} to 2001 of 2001 are not shown: use view_range]"


async def test_search_of_proc_ends(hands: Hands) -> None:
    result = await hands.within(5, "grep", pattern="no such text anywhere", path="/proc")
    assert result.error_kind in (None, ToolErrorKind.TIMEOUT, ToolErrorKind.REFUSED)
    assert (await hands("bash", command="echo alive")).content == "alive\n[exit code 0]"


async def test_no_result_is_longer_than_the_limit(hands: Hands) -> None:
    tools = Toolset.of(max_chars=2000)
    await hands("bash", command=f"{BUSYBOX} mkdir many; cd many; for i in {{1..400}}; do echo word $i > file$i; done")
    await hands.sandbox.write_file("wide", b"x" * 100_000 + b"\n")
    for name, arguments in (
        ("bash", {"command": f"{BUSYBOX} yes | {BUSYBOX} head -c 100000"}),
        ("bash", {"command": f"{BUSYBOX} head -c 100000 /dev/zero"}),
        ("grep", {"pattern": "word", "head_limit": 10_000}),
        ("grep", {"pattern": "word", "output_mode": "content"}),
        ("glob", {"pattern": "*"}),
        (EDIT, {"command": "view", "path": "many"}),
        (EDIT, {"command": "view", "path": "wide"}),
        (EDIT, {"command": "insert", "path": "wide", "insert_line": 0, "insert_text": "y\n" * 5000}),
    ):
        result = await tools.call(hands.sandbox, name, json.dumps(arguments), timeout_s=30)
        assert result.truncated, name
        assert 100 < len(result.content) <= 2000, name


async def test_hostile_file_names_are_shown_on_one_line(hands: Hands) -> None:
    for name in ("a\nb.py", "c\x1b[31m.py", os.fsdecode(b"caf\xe9.py"), "-rf.py"):
        await hands.sandbox.write_file(name, b"word\n")
    expected = "-rf.py\na␊b.py\nc␛[31m.py\ncaf\\xe9.py"
    assert (await hands("glob", pattern="*.py")).content == expected
    assert (await hands("grep", pattern="word")).content == expected
    assert (await hands(EDIT, command="view", path=".")).content == expected


async def test_tools_work_in_empty_image(docker_runtime: Runtime, scratch_image: str) -> None:
    async with docker_runtime.scope(SandboxSpec(scratch_image)) as sandbox:
        hands = Hands(sandbox, Toolset.of())
        assert (await hands(EDIT, command="create", path="/a/b.py", file_text="x = 1\n")).error_kind is None
        assert (await hands(EDIT, command="view", path="/a")).content == "b.py"
        assert (await hands("grep", pattern="x = 1", path="/a")).content == "/a/b.py"
        assert (await hands("glob", pattern="*.py", path="/a")).content == "/a/b.py"
        assert (await hands("bash", command="while read line; do echo $line; done < /only")).content.startswith(
            "this\n"
        )
        await hands("bash", command="read x; echo $((x * 7))", background=True)
        assert (await hands("bash", job=1, input="6\n", wait_s=20)).content.startswith("6\n42\n[job 1 ended")


async def test_call_to_dead_sandbox_raises() -> None:
    runtime = FakeRuntime({"image": {}}, lifetimes=[1])
    async with runtime.scope(SandboxSpec("image")) as sandbox:
        hands = Hands(sandbox, Toolset.of())
        assert (await hands("bash", command="echo once")).exit_code == 0
        with pytest.raises(SandboxGone):
            await hands("bash", command="true")
        with pytest.raises(SandboxGone):
            await hands(EDIT, command="view", path="x")


async def test_patch_naming_file_by_two_paths_is_refused(hands: Hands) -> None:
    tools = Hands(hands.sandbox, Toolset.of(["codex"]))
    await hands("bash", command=f"{BUSYBOX} mkdir d; echo 1 > d/real; {BUSYBOX} ln -s d/real l; {BUSYBOX} ln -s d s")
    for one, other in (("l", "d/real"), ("d/new", "s/new")):
        kinds = ("Update", "@@\n-1\n+2") if one == "l" else ("Add", "+2")
        sections = "".join(f"*** {kinds[0]} File: {path}\n{kinds[1]}\n" for path in (one, other))
        result = await tools("apply_patch", input=f"*** Begin Patch\n{sections}*** End Patch")
        told = f"error: {one} and {other} are one file: patch it by one of them; nothing was changed"
        assert (result.content, result.error_kind) == (told, ToolErrorKind.REFUSED)
    assert await hands.sandbox.read_file("d/real") == b"1\n"


async def test_timed_out_call_reports_if_file_was_written(hands: Hands) -> None:
    for number in range(20):
        text = f"{number}\n" * 500_000
        result = await hands.within(0.004 + 0.002 * number, EDIT, command="create", path="a.txt", file_text=text)
        try:
            written = await hands.sandbox.read_file("a.txt") == text.encode()
        except PathError:
            written = False
        assert written is not result.timed_out, number
        assert not result.timed_out or "nothing was changed" in result.content


@pytest.mark.parametrize("path", ["/dev/zero", "pipe"])
async def test_search_of_special_file_is_refused(hands: Hands, path: str) -> None:
    await hands("bash", command=f"{BUSYBOX} mkfifo pipe")
    result = await hands("grep", pattern="x", path=path)
    assert (result.content, result.error_kind) == (
        f"error: {path}: is a device, FIFO or socket",
        ToolErrorKind.REFUSED,
    )

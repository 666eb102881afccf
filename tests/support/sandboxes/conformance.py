"""The contract of runtimes and sandboxes. A subclass gives the fixtures ``runtime`` and ``image``; then it is a suite.

``image`` holds ``/etc/motd`` with the text ``hello`` and a newline, an executable ``/bin/tool``, and the commands
``sh cat echo env false kill ln mkdir mkfifo printf rm seq sleep true``.
"""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable

import pytest

from sandboxes import (
    ExecResult,
    FileKind,
    ImageError,
    LossCause,
    PathError,
    Runtime,
    Sandbox,
    SandboxGone,
    SandboxLimits,
    SandboxSpec,
    SpecError,
)

WAIT_S = 60.0
"""Ceiling on what must end by itself; never reached when things are well."""

DISK_SHARES = 16
"""Equal shares of an ``oci`` runtime's disk in tests. Each is large enough if 10 GiB of the machine's disk are free."""


def degraded(runtime: Runtime) -> list[str]:
    """Return what a runtime lacks, but for a disk that is too full for its shares: a CI machine may have one."""
    return [lack for lack in runtime.degraded if "free disk space" not in lack]


def text(result: ExecResult) -> str:
    assert result.stdout.whole
    return result.stdout.head.decode()


async def living(runtime: Runtime) -> set[str]:
    return {sandbox_id async for sandbox_id in runtime.living()}


async def refusal(call: Awaitable[object]) -> int:
    """The errno with which a file call was refused."""
    with pytest.raises(PathError) as refused:
        await call
    return refused.value.errno


class RuntimeContract:
    @pytest.fixture
    async def sandbox(self, runtime: Runtime, image: str) -> AsyncIterator[Sandbox]:
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            yield sandbox

    # Life and death

    async def test_scope_removes_at_the_end(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            assert await living(runtime) == {sandbox.id}
        assert await living(runtime) == set()

    async def test_scope_removes_after_an_error(self, runtime: Runtime, image: str) -> None:
        with pytest.raises(ZeroDivisionError):
            async with runtime.scope(SandboxSpec(image)):
                raise ZeroDivisionError
        assert await living(runtime) == set()

    async def test_scope_removes_under_two_cancellations(self, runtime: Runtime, image: str) -> None:
        inside = asyncio.Event()

        async def hold() -> None:
            async with runtime.scope(SandboxSpec(image)):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await asyncio.wait({task, asyncio.create_task(inside.wait())}, return_when=asyncio.FIRST_COMPLETED)
        assert inside.is_set(), task
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await living(runtime) == set()

    @pytest.mark.parametrize("steps", [1, 2, 5, 20, 60])
    async def test_a_cancelled_boot_leaves_nothing(self, runtime: Runtime, image: str, steps: int) -> None:
        task = asyncio.create_task(runtime.create(SandboxSpec(image)))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            sandbox = await task
        except asyncio.CancelledError:
            pass
        else:  # it was ready before the news came
            await sandbox.remove()
        assert await living(runtime) == set()

    async def test_boots_cancelled_at_any_moment_leave_nothing(self, runtime: Runtime, image: str) -> None:
        for milliseconds in range(0, 40, 2):
            task = asyncio.create_task(runtime.create(SandboxSpec(image)))
            await asyncio.sleep(milliseconds / 1000)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).remove()
        async with runtime.scope(SandboxSpec(image)) as sandbox:  # what had been begun has had its time
            assert await living(runtime) == {sandbox.id}

    async def test_remove_is_idempotent_and_final(self, sandbox: Sandbox) -> None:
        await asyncio.gather(sandbox.remove(), sandbox.remove())
        await sandbox.remove()
        with pytest.raises(SandboxGone) as gone:
            await sandbox.exec(["true"], timeout_s=WAIT_S)
        assert gone.value.by is LossCause.OUTSIDE

    async def test_running_call_ends_with_its_sandbox(self, sandbox: Sandbox) -> None:
        call = asyncio.create_task(sandbox.exec(["sh", "-c", "echo > /tmp/started; sleep 1000"], timeout_s=1000))
        await until_there(sandbox, "/tmp/started")
        await sandbox.remove()
        with pytest.raises(SandboxGone) as gone:
            await call
        assert gone.value.by is LossCause.OUTSIDE

    async def test_two_sandboxes_share_nothing(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as one, runtime.scope(SandboxSpec(image)) as other:
            assert one.id != other.id
            assert one.image_digest == other.image_digest
            assert one.image_digest.startswith("sha256:")
            await one.write_file("/tmp/mine", b"1")
            assert await refusal(other.read_file("/tmp/mine")) == errno.ENOENT

    async def test_reap_keeps_living_sandboxes(self, runtime: Runtime, sandbox: Sandbox) -> None:
        await runtime.reap()
        assert await living(runtime) == {sandbox.id}
        assert text(await sandbox.exec(["echo", "here"], timeout_s=WAIT_S)) == "here\n"

    # What is refused

    async def test_missing_image_is_refused(self, runtime: Runtime) -> None:
        with pytest.raises(ImageError, match="farm-test/no-such"):
            await runtime.create(SandboxSpec("farm-test/no-such:1"))
        assert await living(runtime) == set()

    @pytest.mark.parametrize(
        "spec",
        [
            SandboxSpec(""),
            SandboxSpec("../containers"),
            SandboxSpec("x y"),
            SandboxSpec("x", workdir="relative"),
            SandboxSpec("x", env={"A=B": "c"}),
            SandboxSpec("x", env={"A": "c\0d"}),
            SandboxSpec("x", labels={"farm.owner": "me"}),
            SandboxSpec("x", limits=SandboxLimits(memory_mib=0)),
            SandboxSpec("x", limits=SandboxLimits(cpus=float("nan"))),
            SandboxSpec("x", limits=SandboxLimits(pids=-1)),
            SandboxSpec("x", limits=SandboxLimits(open_files=10**9)),
        ],
    )
    async def test_invalid_spec_is_refused(self, runtime: Runtime, spec: SandboxSpec) -> None:
        with pytest.raises(SpecError):
            await runtime.create(spec)

    # Programs

    async def test_exec_keeps_the_streams_apart(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=WAIT_S)
        assert (result.exit_code, result.stdout.head, result.stderr.head) == (3, b"out\n", b"err\n")
        assert not result.timed_out
        assert not result.shell_lost
        assert result.duration_s >= 0

    async def test_exec_merges_the_streams_in_order(self, sandbox: Sandbox) -> None:
        command = ["sh", "-c", "echo 1; echo 2 >&2; echo 3"]
        result = await sandbox.exec(command, merge_stderr=True, timeout_s=WAIT_S)
        assert (result.stdout.head, result.stderr.head) == (b"1\n2\n3\n", b"")

    async def test_exec_passes_bytes_through(self, sandbox: Sandbox) -> None:
        everything = bytes(range(256)) * 500
        assert (await sandbox.exec(["cat"], stdin=everything, timeout_s=WAIT_S)).stdout.head == everything

    async def test_exec_uses_environment_and_directory(self, runtime: Runtime, image: str) -> None:
        spec = SandboxSpec(image, workdir="/srv/here", env={"COLOUR": "green", "SHAPE": "round"})
        async with runtime.scope(spec) as sandbox:
            assert sandbox.workdir == "/srv/here"
            assert sandbox.spec == spec
            command = ["sh", "-c", "pwd; echo $COLOUR $SHAPE"]
            assert text(await sandbox.exec(command, timeout_s=WAIT_S)) == "/srv/here\ngreen round\n"
            changed = await sandbox.exec(command, cwd="/tmp", env={"SHAPE": "it's square"}, timeout_s=WAIT_S)
            assert text(changed) == "/tmp\ngreen it's square\n"

    @pytest.mark.parametrize("workdir", ["/no/such", "/etc/motd"])
    async def test_missing_workdir_is_refused(self, runtime: Runtime, image: str, workdir: str) -> None:
        with pytest.raises(SpecError, match=f"cannot be entered: {workdir}: "):
            await runtime.create(SandboxSpec(image, workdir=workdir))
        assert await living(runtime) == set()

    async def test_exec_of_missing_program_or_directory_fails(self, sandbox: Sandbox) -> None:
        missing = await sandbox.exec(["no-such-program"], timeout_s=WAIT_S)
        assert (missing.exit_code, missing.stdout.head) == (127, b"")
        assert b"no-such-program" in missing.stderr.head
        nowhere = await sandbox.exec(["true"], cwd="/no/such", merge_stderr=True, timeout_s=WAIT_S)
        assert nowhere.exit_code == 127
        assert b"/no/such" in nowhere.stdout.head

    async def test_exec_reports_a_death_by_signal(self, sandbox: Sandbox) -> None:
        assert (await sandbox.exec(["sh", "-c", "kill -9 $$"], timeout_s=WAIT_S)).exit_code == 128 + 9

    async def test_exec_ends_at_timeout(self, sandbox: Sandbox) -> None:
        command = ["sh", "-c", "echo before; sleep 1000; echo after"]
        result = await sandbox.exec(command, timeout_s=2.0)
        assert result.timed_out
        assert result.exit_code is None
        assert result.stdout.head == b"before\n"
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"

    async def test_timeout_kills_background_processes(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "sleep 1000 & echo $!; sleep 1000"], timeout_s=2.0)
        async with asyncio.timeout(WAIT_S):
            while not await _is_dead(sandbox, text(result).strip()):  # it is killed; the kernel may have yet to act
                pass

    async def test_exec_does_not_wait_for_the_background(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", "sleep 1000 & echo $!"], timeout_s=WAIT_S)
        assert result.exit_code == 0
        assert int(text(result)) > 1

    async def test_long_output_keeps_head_and_tail(self, sandbox: Sandbox) -> None:
        whole = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
        result = await sandbox.exec(["seq", "1", "100000"], output_limit=10_000, timeout_s=WAIT_S)
        kept = result.stdout
        assert result.exit_code == 0
        assert kept.elided > 0
        assert not kept.whole
        assert len(kept.head) + len(kept.tail) <= 10_000
        assert len(kept.head) + kept.elided + len(kept.tail) == len(whole)
        assert whole.startswith(kept.head)
        assert whole.endswith(kept.tail)
        assert min(len(kept.head), len(kept.tail)) > 1000
        if result.spill is not None:
            assert await sandbox.read_file(result.spill) == whole

    async def test_programs_run_concurrently(self, sandbox: Sandbox) -> None:
        slow = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=1000))
        results = await asyncio.gather(*(sandbox.exec(["echo", str(n)], timeout_s=WAIT_S) for n in range(20)))
        assert [text(result) for result in results] == [f"{n}\n" for n in range(20)]
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"

    # Shells

    async def test_shell_keeps_state_between_commands(self, sandbox: Sandbox) -> None:
        first = await sandbox.shell("cd /tmp; x=5; export Y=6; echo err >&2; false", timeout_s=WAIT_S)
        assert (first.exit_code, first.stdout.head, first.stderr.head) == (1, b"err\n", b"")
        second = await sandbox.shell('pwd; echo $x $Y "$?"; sh -c "echo $Y"', timeout_s=WAIT_S)
        assert text(second).splitlines()[0] == "/tmp"
        assert text(second).splitlines()[1].startswith("5 6")
        assert text(second).splitlines()[2] == "6"

    async def test_a_shell_starts_in_the_working_directory(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image, workdir="/etc", env={"COLOUR": "green"})) as sandbox:
            assert text(await sandbox.shell("pwd; echo $COLOUR", timeout_s=WAIT_S)) == "/etc\ngreen\n"

    async def test_shell_sessions_are_independent(self, sandbox: Sandbox) -> None:
        await sandbox.shell("x=1; cd /tmp", session="one", timeout_s=WAIT_S)
        other = await sandbox.shell('echo "[$x]"; pwd', session="other", timeout_s=WAIT_S)
        assert text(other) == f"[]\n{sandbox.workdir}\n"

    async def test_ended_shell_is_followed_by_fresh_shell(self, sandbox: Sandbox) -> None:
        ended = await sandbox.shell("x=1; echo bye; exit 7", timeout_s=WAIT_S)
        assert (ended.exit_code, text(ended), ended.shell_lost) == (7, "bye\n", True)
        fresh = await sandbox.shell('echo "[$x]"', timeout_s=WAIT_S)
        assert (text(fresh), fresh.shell_lost) == ("[]\n", False)

    async def test_killed_shell_is_reported_lost(self, sandbox: Sandbox) -> None:
        killed = await sandbox.shell("kill -9 $$", timeout_s=WAIT_S)
        assert (killed.exit_code, killed.shell_lost) == (137, True)

    async def test_shell_ends_at_timeout(self, sandbox: Sandbox) -> None:
        late = await sandbox.shell("x=1; echo before; sleep 1000", timeout_s=2.0)
        assert (late.exit_code, late.timed_out, late.shell_lost) == (None, True, True)
        assert late.stdout.head == b"before\n"
        assert text(await sandbox.shell('echo "[$x]"', timeout_s=WAIT_S)) == "[]\n"

    async def test_a_shell_can_be_restarted(self, sandbox: Sandbox) -> None:
        await sandbox.shell("x=1; cd /tmp", timeout_s=WAIT_S)
        await sandbox.restart_shell()
        assert text(await sandbox.shell('echo "[$x]"; pwd', timeout_s=WAIT_S)) == f"[]\n{sandbox.workdir}\n"

    async def test_shell_survives_syntax_error(self, sandbox: Sandbox) -> None:
        bad = await sandbox.shell("x=1; (", timeout_s=WAIT_S)
        assert bad.exit_code == 2
        assert not bad.timed_out
        assert text(await sandbox.shell("echo on", timeout_s=WAIT_S)) == "on\n"

    # Files

    async def test_written_files_are_read_back(self, sandbox: Sandbox) -> None:
        everything = bytes(range(256)) * 4096
        await sandbox.write_file("/tmp/all", everything)
        assert await sandbox.read_file("/tmp/all") == everything
        assert await sandbox.read_file("/tmp/all", offset=255, limit=3) == b"\xff\x00\x01"
        assert await sandbox.read_file("/tmp/all", offset=len(everything) + 1) == b""
        assert await sandbox.read_file("/etc/motd") == b"hello\n"

    async def test_a_relative_path_starts_at_the_working_directory(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image, workdir="/etc")) as sandbox:
            assert await sandbox.read_file("motd") == b"hello\n"
            assert (await sandbox.stat("motd")).path == "motd"

    async def test_file_modes_are_kept_or_set(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("/bin/tool", b"#!/bin/sh\necho changed\n")
        assert (await sandbox.stat("/bin/tool")).mode & 0o111
        await sandbox.write_file("/bin/tool", b"", executable=False)
        assert not (await sandbox.stat("/bin/tool")).mode & 0o111
        await sandbox.write_file("/tmp/new", b"", executable=True)
        assert (await sandbox.stat("/tmp/new")).mode & 0o111

    async def test_parents_are_created_on_request(self, sandbox: Sandbox) -> None:
        assert await refusal(sandbox.write_file("/tmp/a/b/c", b"1")) == errno.ENOENT
        await sandbox.write_file("/tmp/a/b/c", b"1", parents=True)
        assert await sandbox.read_file("/tmp/a/b/c") == b"1"

    async def test_write_reports_replacement_and_new_refuses_existing(self, sandbox: Sandbox) -> None:
        assert not await sandbox.write_file("/tmp/made", b"1", new=True)
        assert await sandbox.write_file("/tmp/made", b"2")
        assert await sandbox.write_file("/etc/motd", b"2")
        await sandbox.write_link("/tmp/link", "none")
        for path, number in (("/tmp/made", errno.EEXIST), ("/tmp/link", errno.EEXIST), ("/tmp", errno.EISDIR)):
            assert await refusal(sandbox.write_file(path, b"3", new=True)) == number
        assert await sandbox.read_file("/tmp/made") == b"2"

    async def test_writing_follows_a_link(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("/tmp/real", b"old")
        await sandbox.write_link("/tmp/link", "real")
        await sandbox.write_file("/tmp/link", b"new")
        assert await sandbox.read_file("/tmp/real") == b"new"
        assert (await sandbox.stat("/tmp/link")).kind is FileKind.SYMLINK

    async def test_symlink_replaces_a_file(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("/tmp/place", b"old")
        await sandbox.write_link("/tmp/place", "/etc/motd")
        assert await sandbox.read_file("/tmp/place") == b"hello\n"
        await sandbox.write_link("/tmp/new/parent/link", "/etc/motd")
        assert await sandbox.read_file("/tmp/new/parent/link") == b"hello\n"

    async def test_symlink_is_not_written_through_symlink(self, sandbox: Sandbox) -> None:
        await sandbox.write_link("/tmp/elsewhere", "/etc")
        assert await refusal(sandbox.write_link("/tmp/elsewhere/motd", "/dev/null")) in (errno.ELOOP, errno.ENOTDIR)
        assert await sandbox.read_file("/etc/motd") == b"hello\n"

    async def test_remove_deletes_tree_but_not_link_target(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("/tmp/tree/deep/file", b"1", parents=True)
        await sandbox.write_link("/tmp/tree/link", "/etc")
        await sandbox.remove_path("/tmp/tree")
        assert await refusal(sandbox.stat("/tmp/tree")) == errno.ENOENT
        assert await sandbox.read_file("/etc/motd") == b"hello\n"
        await sandbox.remove_path("/tmp/tree")

    async def test_stat_reports_kind_and_size(self, sandbox: Sandbox) -> None:
        await sandbox.write_file("/tmp/file", b"12345")
        await sandbox.write_link("/tmp/link", "file")
        await sandbox.exec(["mkfifo", "/tmp/fifo"], timeout_s=WAIT_S)
        kinds = [(await sandbox.stat(f"/tmp{name}")).kind for name in ("", "/file", "/link", "/fifo")]
        assert kinds == [FileKind.DIRECTORY, FileKind.FILE, FileKind.SYMLINK, FileKind.OTHER]
        entry = await sandbox.stat("/tmp/file")
        assert (entry.size, entry.mtime_ns > 0) == (5, True)

    async def test_reading_special_file_does_not_block(self, sandbox: Sandbox) -> None:
        await sandbox.exec(["mkfifo", "/tmp/fifo"], timeout_s=WAIT_S)
        for path in ("/tmp/fifo", "/tmp"):
            with pytest.raises(PathError):
                await asyncio.wait_for(sandbox.read_file(path), WAIT_S)

    async def test_file_errors_carry_errno_and_path(self, sandbox: Sandbox) -> None:
        with pytest.raises(PathError) as refused:
            await sandbox.read_file("/no/such")
        assert (refused.value.errno, refused.value.path) == (errno.ENOENT, "/no/such")
        assert await refusal(sandbox.write_file("/tmp", b"")) == errno.EISDIR
        assert await refusal(sandbox.stat("/etc/motd/x")) == errno.ENOTDIR
        await sandbox.write_link("/tmp/loop", "loop")
        assert await refusal(sandbox.read_file("/tmp/loop")) == errno.ELOOP

    async def test_walk_is_sorted_pruned_and_follows_no_symlink(self, sandbox: Sandbox) -> None:
        for name in ("b", "a/z", "a/é", "node_modules/x", "a/node_modules/y"):
            await sandbox.write_file(f"/tmp/w/{name}", b"1", parents=True)
        await sandbox.write_link("/tmp/w/c", "/etc")
        found = await sandbox.walk("/tmp/w", prune=("node_modules",))
        assert [(entry.path, entry.kind) for entry in found] == [
            ("a/z", FileKind.FILE),
            ("a/é", FileKind.FILE),
            ("b", FileKind.FILE),
            ("c", FileKind.SYMLINK),
        ]
        assert [entry.path for entry in await sandbox.walk("/tmp/w/node_modules")] == ["x"]
        assert await refusal(sandbox.walk("/tmp/nothing")) == errno.ENOENT

    # Killing

    async def test_kill_all_leaves_nothing_running(self, sandbox: Sandbox) -> None:
        started = await sandbox.shell("sleep 1000 & echo $!", timeout_s=WAIT_S)
        apart = await sandbox.exec(["sh", "-c", "sleep 1000 & echo $!"], timeout_s=WAIT_S)
        call = asyncio.create_task(sandbox.exec(["sh", "-c", "echo > /tmp/started; sleep 1000"], timeout_s=1000))
        await until_there(sandbox, "/tmp/started")
        await sandbox.kill_all()
        assert (await call).exit_code == 137
        assert await _is_dead(sandbox, text(started).strip())
        assert await _is_dead(sandbox, text(apart).strip())
        assert text(await sandbox.shell("echo on", timeout_s=WAIT_S)) == "on\n"


async def _is_dead(sandbox: Sandbox, pid: str) -> bool:
    return (await sandbox.exec(["sh", "-c", f"kill -0 {pid}"], timeout_s=WAIT_S)).exit_code != 0


async def until_there(sandbox: Sandbox, path: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await sandbox.stat(path)
            except PathError:
                await asyncio.sleep(0.005)
            else:
                return

"""What the fake can do beyond the contract: fail on demand, and refuse what it does not know."""

import asyncio
import errno
from typing import Any

import pytest

from sandboxes import BootError, FakeRuntime, LossCause, Sandbox, SandboxGone, SandboxSpec
from sandboxes.interface import WALK_DIRECTORIES_MAX
from sandboxes.testing.fake_sandbox import FakeSandbox
from sandboxes.testing.programs import FakeProcess
from tests.support.sandboxes.conformance import WAIT_S, living, refusal, text

SPEC = SandboxSpec("made-up:1")


def fake(**failures: Any) -> FakeRuntime:
    return FakeRuntime({"made-up:1": {"/etc/motd": b"hello\n"}}, **failures)


async def calls_until_gone(sandbox: Sandbox) -> int:
    calls = 0
    try:
        while calls < 10:
            await sandbox.exec(["true"], timeout_s=WAIT_S)
            calls += 1
    except SandboxGone:
        pass
    return calls


async def test_boots_fail_in_configured_order() -> None:
    runtime = fake(boot_errors=[None, BootError("no answer")])
    await runtime.create(SPEC)
    with pytest.raises(BootError, match="no answer"):
        await runtime.create(SPEC)
    await runtime.create(SPEC)
    assert len(await living(runtime)) == 2


async def test_sandboxes_die_after_configured_number_of_calls() -> None:
    runtime = fake(lifetimes=[2, None, 0])
    assert [await calls_until_gone(await runtime.create(SPEC)) for _ in range(4)] == [2, 10, 0, 10]


async def test_walk_of_too_many_directories_is_refused() -> None:
    """The limit and the error are those of the tool server."""
    sandbox = await fake().create(SPEC)
    assert isinstance(sandbox, FakeSandbox)
    for number in range(WALK_DIRECTORIES_MAX):
        sandbox.files.make_directory(f"/w/{number}")
    assert await sandbox.walk("/w") == []
    sandbox.files.make_directory("/w/0/one more")
    assert await refusal(sandbox.walk("/w")) == errno.E2BIG
    assert await sandbox.walk("/w", prune=["one more"]) == []


@pytest.mark.parametrize("by", LossCause)
async def test_death_during_call_reports_its_cause(by: LossCause) -> None:
    sandbox = await fake().create(SPEC)
    assert isinstance(sandbox, FakeSandbox)
    call = asyncio.create_task(sandbox.shell("sleep 1000", timeout_s=1000))
    await sandbox.stat("/")
    await sandbox.die(by=by)
    with pytest.raises(SandboxGone) as gone:
        await call
    assert gone.value.by is by


async def test_callers_program_runs_in_fake_sandbox() -> None:
    async def shout(process: FakeProcess) -> int:
        process.streams.out += process.argv[1].upper().encode()
        process.files.write(process.path("said"), process.streams.stdin)
        return 3

    sandbox = await fake(programs={"shout": shout}).create(SPEC)
    result = await sandbox.exec(["/usr/bin/shout", "hey"], stdin=b"in", cwd="/tmp", timeout_s=WAIT_S)
    assert (result.exit_code, text(result)) == (3, "HEY")
    assert await sandbox.read_file("/tmp/said") == b"in"


@pytest.mark.parametrize(
    "command", ["cat x | sort", "for i in 1 2; do echo $i; done", "echo $(pwd)", "A=1 true", "a &&", "echo *"]
)
async def test_unsupported_command_is_refused(command: str) -> None:
    result = await (await fake().create(SPEC)).shell(command, timeout_s=WAIT_S)
    assert result.exit_code in (2, 127)
    assert b"sh: syntax error" in result.stdout.head or b"not found" in result.stdout.head

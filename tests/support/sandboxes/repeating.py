"""The contract of calls that may be repeated; a suite as ``conformance`` is, on the same fixtures."""

import asyncio

import pytest

from sandboxes import Runtime, SandboxSpec, SpecError
from tests.support.sandboxes.conformance import WAIT_S, text, until_there

NOTE = "echo once >> /tmp/notes; echo said"


class RepeatContract:
    async def test_call_with_repeated_id_runs_once(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            for number in range(3):
                result = await sandbox.shell(NOTE, timeout_s=WAIT_S, call_id="turn 1, call 1")
                assert text(result) == "said\n", number
            result = await sandbox.exec(["sh", "-c", NOTE], timeout_s=WAIT_S, call_id="turn 1, call 2")
            assert result == await sandbox.exec(["sh", "-c", NOTE], timeout_s=WAIT_S, call_id="turn 1, call 2")
            assert await sandbox.read_file("/tmp/notes") == b"once\n" * 2
            await sandbox.shell(NOTE, timeout_s=WAIT_S)
            await sandbox.shell(NOTE, timeout_s=WAIT_S)
            assert await sandbox.read_file("/tmp/notes") == b"once\n" * 4

    async def test_repetition_of_running_call_shares_result(self, runtime: Runtime, image: str) -> None:
        slow = f"echo > /tmp/started; sleep 0.3; {NOTE}"
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            first = asyncio.create_task(sandbox.exec(["sh", "-c", slow], timeout_s=WAIT_S, call_id="slow"))
            await until_there(sandbox, "/tmp/started")
            again = await sandbox.exec(["sh", "-c", slow], timeout_s=WAIT_S, call_id="slow")
            assert again == await first
            assert await sandbox.read_file("/tmp/notes") == b"once\n"

    async def test_different_call_with_same_id_is_refused(self, runtime: Runtime, image: str) -> None:
        async with runtime.scope(SandboxSpec(image)) as sandbox:
            await sandbox.shell(NOTE, timeout_s=WAIT_S, call_id="é")
            with pytest.raises(SpecError, match="'é' belongs to a different call"):
                await sandbox.shell("echo other", timeout_s=WAIT_S, call_id="é")
            with pytest.raises(SpecError, match="belongs to a different call"):
                await sandbox.exec(["sh", "-c", NOTE], timeout_s=WAIT_S, call_id="é")
            assert await sandbox.read_file("/tmp/notes") == b"once\n"

"""The contract of ``freeze`` and ``thaw``."""

import asyncio
from itertools import pairwise

import pytest

from sandboxes import Runtime, Sandbox, SandboxGone, SandboxSpec
from tests.support.sandboxes.conformance import WAIT_S, living, text, until_there

STILL_S = 1.5
LIMIT_S = 8.0
SLOW = "echo > /tmp/started; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done"
TICKS = "while :; do cat /proc/uptime; done > /tmp/ticks"
ONE_MORE_TICK = "size() { wc -c < /tmp/ticks; }; n=$(size); while [ $(size) = $n ]; do :; done"


class FreezeContract:
    async def test_call_is_answered_after_thaw(self, sandbox: Sandbox) -> None:
        await sandbox.freeze()
        call = asyncio.create_task(sandbox.exec(["echo", "on"], timeout_s=WAIT_S))
        await asyncio.wait({call}, timeout=0.3)
        assert not call.done()
        await sandbox.thaw()
        assert text(await call) == "on\n"

    async def test_frozen_sandbox_can_be_removed(self, runtime: Runtime, image: str) -> None:
        sandbox = await runtime.create(SandboxSpec(image))
        await sandbox.freeze()
        await sandbox.remove()
        assert await living(runtime) == set()
        await sandbox.thaw()
        with pytest.raises(SandboxGone):
            await sandbox.freeze()

    async def test_freezing_twice_needs_one_thaw(self, sandbox: Sandbox) -> None:
        await sandbox.thaw()
        await sandbox.freeze()
        await sandbox.freeze()
        await sandbox.thaw()
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


class StillnessContract(FreezeContract):
    async def test_frozen_time_does_not_count_for_a_command(self, sandbox: Sandbox) -> None:
        call = asyncio.create_task(sandbox.exec(["sh", "-c", SLOW], timeout_s=LIMIT_S))
        await until_there(sandbox, "/tmp/started")
        await sandbox.freeze()
        await asyncio.sleep(LIMIT_S + 1)
        await sandbox.thaw()
        result = await call
        assert (result.exit_code, result.timed_out) == (0, False)
        assert result.duration_s < LIMIT_S

    async def test_no_process_runs_while_frozen(self, sandbox: Sandbox) -> None:
        job = await sandbox.start_job(TICKS)
        await until_there(sandbox, "/tmp/ticks")
        await sandbox.exec(["sh", "-c", ONE_MORE_TICK], timeout_s=WAIT_S)
        await sandbox.freeze()
        await asyncio.sleep(STILL_S)
        await sandbox.thaw()
        await sandbox.exec(["sh", "-c", ONE_MORE_TICK], timeout_s=WAIT_S)
        await sandbox.end_job(job)
        lines = (await sandbox.read_file("/tmp/ticks")).decode().splitlines()[:-1]
        ticks = [float(line.split()[0]) for line in lines]
        assert max(later - earlier for earlier, later in pairwise(ticks)) >= STILL_S - 0.1

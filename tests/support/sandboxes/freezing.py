"""The contract of ``freeze`` and ``thaw``."""

import asyncio
from itertools import pairwise

import pytest

from sandboxes import Runtime, Sandbox, SandboxGone, SandboxSpec
from tests.support.sandboxes.conformance import WAIT_S, living, text, until_there

STILL_S = 1.5
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
    async def test_no_process_runs_while_frozen(self, sandbox: Sandbox) -> None:
        job = await sandbox.start_job(TICKS)
        await until_there(sandbox, "/tmp/ticks")
        await sandbox.freeze()
        await asyncio.sleep(STILL_S)
        await sandbox.thaw()
        await sandbox.exec(["sh", "-c", ONE_MORE_TICK], timeout_s=WAIT_S)
        await sandbox.end_job(job)
        lines = (await sandbox.read_file("/tmp/ticks")).decode().splitlines()[:-1]
        ticks = [float(line.split()[0]) for line in lines]
        assert max(later - earlier for earlier, later in pairwise(ticks)) >= STILL_S - 0.1

"""Reading the work of an episode is repeated once if it takes too long: the machine may have stalled."""

import asyncio

import pytest

from farm.grading import collect_work, take_baseline
from sandboxes.spec import SandboxSpec
from sandboxes.testing.fake_runtime import FakeRuntime
from sandboxes.testing.shell import FakeProcess
from tests.support.farm.grading_values import IMAGE, WORKSPACE, busybox, change, image, link, make_bundle


class StallingReadlink:
    """The program that reads links. It hangs in its first ``stalls`` runs."""

    def __init__(self, stalls: int) -> None:
        self._stalls = stalls
        self.runs = 0

    async def __call__(self, process: FakeProcess) -> int:
        self.runs += 1
        if self.runs <= self._stalls:
            await asyncio.Event().wait()
        return await busybox(process)


@pytest.mark.parametrize(("stalls", "limit_s"), [(1, 2.0), (2, 0.05)])
async def test_slow_read_is_repeated_once(stalls: int, limit_s: float) -> None:
    readlink = StallingReadlink(stalls)
    runtime = FakeRuntime(image({"a.py": b"a\n"}), programs={"busybox": readlink})
    async with runtime.scope(SandboxSpec(IMAGE, workdir=WORKSPACE)) as sandbox:
        baseline = await take_baseline(sandbox, WORKSPACE)
        await sandbox.write_link("b.py", "a.py")
        collecting = collect_work(sandbox, make_bundle().task, baseline, limit_s=limit_s)
        if stalls == 1:
            assert await collecting == change(link("b.py", b"a.py"))
        else:
            with pytest.raises(TimeoutError):
                await collecting
    assert readlink.runs == 2

"""Groups of sandboxes that stand still, on sandboxes in memory."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandboxes import FakeRuntime, RuntimeUnavailable, SandboxGone, SandboxSpec
from sandboxes import standstill as standstill_module
from sandboxes.standstill import Participant, Standstill
from sandboxes.testing.fake_sandbox import FakeSandbox

IMAGE = "farm-test/fake:1"


@pytest.fixture
async def sandbox() -> AsyncIterator[FakeSandbox]:
    runtime = FakeRuntime({IMAGE: {}})
    sandbox = await runtime.create(SandboxSpec(IMAGE))
    assert isinstance(sandbox, FakeSandbox)
    yield sandbox
    await runtime.close()


async def entered(standstill: Standstill, sandbox: FakeSandbox, group: str = "a task") -> Participant:
    participant = standstill.participant(group)
    await participant.enter(sandbox)
    return participant


async def let_others_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_sandboxes_of_the_group_stand_still_in_the_block(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    participant = await entered(standstill, sandbox)
    async with standstill.hold("a task"):
        assert sandbox.is_frozen()
    assert not sandbox.is_frozen()
    assert participant.still_s > 0
    async with standstill.hold("another task"):
        assert not sandbox.is_frozen()


async def test_sandbox_that_left_does_not_stand_still(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    (await entered(standstill, sandbox)).leave()
    async with standstill.hold("a task"):
        assert not sandbox.is_frozen()


async def test_nothing_stands_still_if_turned_off(sandbox: FakeSandbox) -> None:
    standstill = Standstill(is_on=False)
    participant = await entered(standstill, sandbox)
    async with standstill.hold("a task"), standstill.hold("a task"), participant.call():
        assert not sandbox.is_frozen()


async def test_block_waits_for_the_call_in_progress(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    participant = await entered(standstill, sandbox)
    began = asyncio.Event()

    async def hold() -> None:
        async with standstill.hold("a task"):
            began.set()

    async with participant.call():
        holding = asyncio.create_task(hold())
        await let_others_run()
        assert not began.is_set()
        assert not sandbox.is_frozen()
    await holding
    assert began.is_set()


async def test_call_waits_for_the_end_of_the_block(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    participant = await entered(standstill, sandbox)

    async def make_call() -> str:
        async with participant.call():
            assert not sandbox.is_frozen()
            return "made"

    async with standstill.hold("a task"):
        call = asyncio.create_task(make_call())
        await let_others_run()
        assert not call.done()
        assert participant.waited_s > 0
    assert await call == "made"
    waited_s = participant.waited_s
    await let_others_run()
    assert participant.waited_s == waited_s


async def test_waiting_calls_are_made_between_two_blocks(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    participant = await entered(standstill, sandbox)
    events: list[str] = []

    async def make_call() -> None:
        async with participant.call():
            events.append("call")

    async def hold(name: str) -> None:
        async with standstill.hold("a task"):
            events.append(name)
            await let_others_run()

    async with asyncio.TaskGroup() as group:
        group.create_task(hold("first block"))
        await asyncio.sleep(0)
        group.create_task(hold("second block"))
        group.create_task(make_call())
    assert events == ["first block", "call", "second block"]


async def test_sandbox_that_enters_during_a_block_waits(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    async with standstill.hold("a task"):
        entering = asyncio.create_task(entered(standstill, sandbox))
        await let_others_run()
        assert sandbox.is_frozen()
        assert not entering.done()
    await entering
    assert not sandbox.is_frozen()


async def test_sandbox_that_enters_between_two_blocks_stands_still_in_the_second(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    seen: list[bool] = []

    async def hold() -> None:
        async with standstill.hold("a task"):
            await let_others_run()
            seen.append(sandbox.is_frozen())

    async with asyncio.TaskGroup() as group:
        group.create_task(hold())
        await asyncio.sleep(0)
        group.create_task(hold())
        group.create_task(entered(standstill, sandbox))
    assert seen == [True, True]
    assert not sandbox.is_frozen()


async def test_cancelled_block_thaws(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    participant = await entered(standstill, sandbox)

    async def hold() -> None:
        async with standstill.hold("a task"):
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await let_others_run()
    assert sandbox.is_frozen()
    holding.cancel()
    await asyncio.wait({holding})
    assert not sandbox.is_frozen()
    async with participant.call():
        await sandbox.ping()


async def test_lost_sandbox_keeps_no_block_from_beginning(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    await entered(standstill, sandbox)
    await sandbox.die()
    async with standstill.hold("a task"):
        pass


async def test_long_command_is_interrupted(sandbox: FakeSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill_module, "COMMAND_WAIT_S", 0.01)
    standstill = Standstill()
    participant = await entered(standstill, sandbox)
    async with participant.call(interruptible=True), standstill.hold("a task"):
        assert sandbox.is_frozen()
    assert not sandbox.is_frozen()


async def test_long_call_of_one_task_takes_no_slot_from_another(sandbox: FakeSandbox) -> None:
    standstill, slots = Standstill(), asyncio.Semaphore(1)
    participant = await entered(standstill, sandbox)
    began = asyncio.Event()

    async def hold() -> None:
        async with standstill.hold("a task", slots):
            began.set()

    async with participant.call():
        holding = asyncio.create_task(hold())
        await let_others_run()
        async with standstill.hold("another task", slots):
            assert not began.is_set()
    await holding


async def test_sandbox_that_leaves_before_a_standstill_is_not_frozen(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    participant = await entered(standstill, sandbox)

    async def hold() -> None:
        async with standstill.hold("a task"):
            assert not sandbox.is_frozen()

    async with participant.call():
        holding = asyncio.create_task(hold())
        await let_others_run()
        participant.leave()
    await participant.settle()
    await holding


async def test_sandbox_that_leaves_in_a_standstill_settles_at_its_end(sandbox: FakeSandbox) -> None:
    standstill = Standstill()
    participant = await entered(standstill, sandbox)
    async with standstill.hold("a task"):
        participant.leave()
        settling = asyncio.create_task(participant.settle())
        await let_others_run()
        assert not settling.done()
    await settling
    assert not sandbox.is_frozen()


class UnfreezableSandbox(FakeSandbox):
    async def freeze(self) -> None:
        raise RuntimeUnavailable("a process still runs")


async def test_sandbox_that_cannot_be_frozen_is_removed(sandbox: FakeSandbox) -> None:
    sandbox.__class__ = UnfreezableSandbox
    standstill = Standstill()
    await entered(standstill, sandbox)
    async with standstill.hold("a task"):
        with pytest.raises(SandboxGone):
            await sandbox.ping()


async def test_block_has_a_slot() -> None:
    standstill, slots = Standstill(), asyncio.Semaphore(1)
    async with standstill.hold("a task", slots):
        assert slots.locked()
    assert not slots.locked()

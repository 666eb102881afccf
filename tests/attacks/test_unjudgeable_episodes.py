"""A policy makes its episode impossible to store or to grade, so that its sample is dropped; it is judged."""

from array import array
from dataclasses import replace

import pytest

from farm.core.rollout import Rollout, Segment, SegmentTurn
from farm.rollout import run_episode
from farm.rollout.loop import MAX_CALLS_PER_TURN
from farm.rollout.policy import Reply
from farm.store.packed import pack_rollout
from farm.wire.frames import unpack_frame
from farm.wire.record import RolloutRecord, Sidecar, from_msgpack, sidecar_of, to_msgpack
from tests.unit.rollout_fixtures import DONE, FIX, Scripted, call, create, fake, order, say, task

BOUND = 64 * 1024


async def played(*script: Reply) -> Rollout:
    return await run_episode(order(), task(), fake(), Scripted(*script), node="n1")


def naive_size(rollout: Rollout) -> int:
    """Return what a store must hold that keeps or refuses a rollout as a whole."""
    return max(len(to_msgpack(RolloutRecord.of(rollout))), len(to_msgpack(sidecar_of(rollout))))


async def test_message_of_many_calls_runs_the_first() -> None:
    calls = [create(f"{number}\n", f"file{number}.txt") for number in range(1_000)]
    rollout = await played(say(*calls), FIX, DONE)
    assert rollout.reward == 1.0
    assert rollout.reward_components["misuse_over_limit"] == 1_000 - MAX_CALLS_PER_TURN
    assert "file127.txt" in rollout.patch
    assert "file128.txt" not in rollout.patch
    assert "only the first 128 calls" in rollout.turns[0].tool_uses[-1].result


@pytest.mark.parametrize("way", ["many results", "long arguments", "many turns", "a large patch"])
async def test_rollout_with_long_turns_keeps_its_verdict(way: str) -> None:
    script = {
        "many results": [say(*[call("no_such_tool")] * 600)],
        "long arguments": [say(call("no_such_tool", {"text": "x" * 3 * BOUND}))],
        "many turns": [say(call("no_such_tool", {"text": "x" * BOUND}))] * 4,
        "a large patch": [say(create("x\n" * 2 * BOUND, "more.txt"))],
    }[way]
    rollout = await played(*script, FIX, DONE)
    assert rollout.reward == 1.0
    assert naive_size(rollout) > BOUND
    packed = pack_rollout(rollout, BOUND)
    assert from_msgpack(RolloutRecord, unpack_frame(packed.payload)).reward == 1.0
    sidecar = unpack_frame(packed.sidecar)
    assert len(sidecar) <= BOUND
    assert "too large to be stored" in from_msgpack(Sidecar, sidecar).reason


async def test_rollout_with_too_many_tokens_keeps_its_verdict() -> None:
    tokens = array("i", range(BOUND))
    segment = Segment(
        tokens,
        b"\0" + b"\1" * (BOUND - 1),
        array("f", [0.0, *[-0.5] * (BOUND - 1)]),
        weight_versions=(),
        prompt_length=1,
        turns=(SegmentTurn(1, BOUND, "stop", ""),),
    )
    rollout = replace(await played(FIX, DONE), segments=(segment,), trainable=True)
    assert naive_size(rollout) > BOUND
    packed = pack_rollout(rollout, BOUND)
    stored = from_msgpack(RolloutRecord, unpack_frame(packed.payload))
    assert (stored.reward, stored.trainable, stored.segments) == (1.0, False, ())
    assert "untrainable" in from_msgpack(Sidecar, unpack_frame(packed.sidecar)).reason


async def test_rollout_within_bounds_is_stored_whole() -> None:
    rollout = await played(FIX, DONE)
    packed = pack_rollout(rollout, BOUND)
    assert unpack_frame(packed.sidecar) == to_msgpack(sidecar_of(rollout))

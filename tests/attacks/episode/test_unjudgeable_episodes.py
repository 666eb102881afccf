"""A bad episode made unjudgeable, so that it is dropped or tried again instead of being worth 0."""

from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farm.core.rollout import Origin, Rollout, StopReason, check
from farm.core.run import EpisodeLimits
from farm.core.task import MIN_STORAGE_MIB
from farm.core.untrainable_reasons import TOO_LONG
from farm.episode import NodeServices, Reply, bare_verdict, run_episode
from farm.episode.record_limits import DROPPED, MOST_SIDECAR_CHARS, NOT_FINITE, fit
from farm.episode.record_limits import MOST_TOKENS as MOST_TOKENS_KEPT
from farm.episode.tool_calls import MOST_CALLS
from farm.grading.changes.capture import MAX_BYTES
from farm.node.episodes.publisher import RolloutPublisher
from farm.policy.openai_response import MAX_COUNT, parse_completion
from farm.rewards import apply_rules, default_rules
from farm.store.errors import RolloutTooLarge
from farm.store.rollout_encoding import pack_rollout
from farm.tasks.schema.unsupported import unsupported_features
from tests.support.farm.episode_values import DONE, FIX, Scripted, call, fake, order, sampled, say, task
from tests.unit.tasks.test_loader import MANIFEST, complaint, load, write_task

LOOK = call("bash", {"command": "true"})
HUGE = Reply("x" * MOST_SIDECAR_CHARS, (), "stop")


async def play(*steps: Any, limits: EpisodeLimits | None = None) -> Rollout:
    rollout = await run_episode(order(limits), task(), Scripted(*steps), NodeServices("n1", fake()))
    check(rollout)
    return rollout


def judged(rollout: Rollout, reward: float) -> None:
    """Assert that the rollout has its verdict and can be stored."""
    assert rollout.error is None, rollout.error
    assert rollout.reward == reward
    pack_rollout(apply_rules(rollout, default_rules()))


async def test_calls_over_limit_are_refused_and_counted() -> None:
    many = tuple(replace(LOOK, id=f"call-{number}") for number in range(10_000))
    rollout = await play(say(*many), DONE)
    judged(rollout, 0.0)
    (flood, _) = rollout.turns
    over = [use for use in flood.tool_uses if use.error_kind == "over_limit"]
    assert len(over) == len(many) - MOST_CALLS == rollout.metrics["calls_over_limit"]
    assert f"only the first {MOST_CALLS} calls" in over[0].result
    assert not any(use.is_error for use in flood.tool_uses[:MOST_CALLS])


async def test_calls_up_to_limit_are_all_run() -> None:
    rollout = await play(say(*[LOOK] * MOST_CALLS), FIX, DONE)
    judged(rollout, 1.0)
    assert rollout.metrics["calls_over_limit"] == 0


USAGES: Mapping[str, tuple[str, int]] = {
    "negative": ("-5", 0),
    "not a number": ("NaN", 0),
    "endless": ("Infinity", 0),
    "beyond 64 bits": (str(2**63), MAX_COUNT),
    "beyond a double": (str(10**400), MAX_COUNT),
    "a double": ("1e300", MAX_COUNT),
    "a half": ("7.5", 7),
    "text": ('"many"', 0),
    "null": ("null", 0),
    "true": ("true", 0),
}


@pytest.mark.parametrize(("written", "taken"), USAGES.values(), ids=USAGES)
async def test_odd_usage_is_clamped_and_judged(written: str, taken: int) -> None:
    message = '{"content": "", "tool_calls": [{"id": "a", "function": {"name": "submit", "arguments": "{}"}}]}'
    usage = f'{{"prompt_tokens": {written}, "completion_tokens": {written}}}'
    body = f'{{"choices": [{{"message": {message}, "finish_reason": "stop"}}], "usage": {usage}}}'
    reply = parse_completion(body.encode())
    assert (reply.prompt_tokens, reply.completion_tokens) == (taken, taken)
    judged(await play(reply), 0.0)


@pytest.mark.parametrize("usage", ["[]", '"none"', "7", "null"])
def test_malformed_usage_counts_zero_tokens(usage: str) -> None:
    body = f'{{"choices": [{{"message": {{"content": "hi"}}}}], "usage": {usage}}}'
    assert parse_completion(body.encode()).prompt_tokens == 0


async def test_a_flood_of_text_is_cut_and_judged() -> None:
    flood = tuple(call("bash", "{" + "x" * 1_000_000, id_=f"{number}") for number in range(100))
    rollout = await play(HUGE, limits=EpisodeLimits(max_turns=1))
    judged(rollout, 0.0)
    assert rollout.metrics["sidecar_cut"] == 1.0
    rollout = await play(say(*flood), DONE)
    judged(rollout, 0.0)
    assert "left out by the farm" in rollout.turns[0].tool_uses[0].arguments


async def test_ordinary_turns_are_unchanged() -> None:
    rollout = await play(FIX, DONE)
    judged(rollout, 1.0)
    assert not {name for name in rollout.metrics if name.startswith("sidecar")}


async def test_turns_of_too_many_calls_are_dropped() -> None:
    rollout = await play(FIX, DONE)
    turns = rollout.turns * 400
    crowded = replace(rollout, turns=tuple(replace(turn, tool_uses=turn.tool_uses * 400) for turn in turns))
    fitted = fit(crowded)
    assert (fitted.turns, fitted.reward, fitted.metrics[DROPPED]) == ((), rollout.reward, 1.0)


async def test_non_finite_numbers_are_dropped_and_reward_kept() -> None:
    rollout = await play(FIX, DONE)
    odd = replace(
        rollout,
        reward_components={**rollout.reward_components, "style_new": float("nan"), "diff_bytes": float("inf")},
        metrics={**rollout.metrics, "total_s": float("nan")},
        turns=(replace(rollout.turns[0], prompt_tokens=2**70, completion_tokens=-1),),
    )
    fitted = fit(odd)
    assert fitted.metrics[NOT_FINITE] == 1.0
    judged(fitted, 1.0)


async def test_invalid_tokens_drop_segments_and_keep_reward() -> None:
    broken = replace(sampled([1], [2, 3]), logprobs=array("f", [float("nan"), 0.0]))
    rollout = await play(replace(FIX, sampled=sampled([1], [2])), replace(DONE, sampled=broken))
    judged(rollout, 1.0)
    assert (rollout.trainable, rollout.segments) == (False, ())
    assert "untrainable" in rollout.reason


async def test_oversized_segments_are_untrainable_but_judged() -> None:
    rollout = await play(replace(FIX, sampled=sampled([1], [2])), replace(DONE, sampled=sampled([7], [8])))
    assert rollout.trainable
    endless = replace(rollout.segments[0], token_ids=array("i", bytes(4 * MOST_TOKENS_KEPT)))
    fitted = fit(replace(rollout, segments=(*rollout.segments, endless)))
    judged(fitted, 1.0)
    assert (fitted.trainable, fitted.metrics[TOO_LONG]) == (False, 1.0)


@pytest.mark.parametrize("text", ["\ud800", "\x00\x1b[2J\x07", "\u202e\u2028", "é" * 9])
async def test_odd_text_in_calls_is_judged(text: str) -> None:
    odd = (call("bash", {"command": text}), call(text, text), replace(LOOK, id=text))
    judged(await play(say(*odd), replace(DONE, content=text, reasoning=text, finish_reason=text)), 0.0)


class Choosy:
    """A store that takes nothing with turns, and keeps what it took."""

    def __init__(self) -> None:
        self.taken: list[Rollout] = []

    async def get_bundle(self, digest: str) -> bytes | None:
        return None

    async def publish_scored(self, rollout: Rollout, pinned: str = "") -> Rollout:
        if rollout.turns:
            raise RolloutTooLarge("too many bytes")
        self.taken.append(rollout)
        return rollout


async def test_rollout_refused_by_store_keeps_its_verdict() -> None:
    store, rollout = Choosy(), await play(FIX, DONE)
    published, done = await RolloutPublisher(store, "n1", 1.0).publish(order(), rollout)
    assert done
    assert (published.reward, published.error, published.turns) == (1.0, None, ())
    assert store.taken == [published]
    assert "too many bytes" in published.reason
    pack_rollout(bare_verdict(rollout, "why"))


async def test_infrastructure_failure_stays_unjudged() -> None:
    rollout = await play(OSError("the disk of the node"))
    assert rollout.reward is None
    assert rollout.error is not None
    assert (rollout.error.origin, rollout.stop_reason) == (Origin.INFRA, StopReason.ERROR)


@pytest.mark.parametrize("size", [1, 64, MIN_STORAGE_MIB - 1])
def test_disk_too_small_for_grading_is_refused(tmp_path: Path, size: int) -> None:
    small = f"{MANIFEST}[environment]\nstorage_mb = {size}\n"
    assert f"grant at least {MIN_STORAGE_MIB}" in complaint(write_task(tmp_path, task_DOT_toml=small))


def test_foreign_task_gets_minimum_grading_disk(tmp_path: Path) -> None:
    small = "[environment]\nstorage_mb = 64\n"
    path = write_task(tmp_path, task_DOT_toml=small, tests__test_DOT_sh="echo 1 > /logs/verifier/reward.txt\n")
    assert load(path).task.storage_mib == MIN_STORAGE_MIB
    assert [
        warning for warning in unsupported_features(path) if warning.startswith("environment.storage_mb is ignored")
    ]


def test_smallest_disk_holds_the_largest_change() -> None:
    assert MIN_STORAGE_MIB * 1024 * 1024 >= 3 * MAX_BYTES

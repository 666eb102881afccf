"""Rule documents in Redis, which of them judges a group, and stored rollouts judged anew."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from farm.core.rollout import Rollout
from farm.rewards import BadRules, default_rules
from farm.schemas.msgpack_encoding import pack, unpack
from farm.schemas.zstd_frames import pack_frame, unpack_frame
from farm.store import LeaseFilter, RulesChanged, RunState, Store, UnknownRules, UnknownRun
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec

pytestmark = pytest.mark.redis

LONG_S = 60.0


def document(name: str, verdict: float, more: str = "") -> str:
    return f'name = "{name}"\n[weights]\nverdict = {verdict}\n{more}'


DOUBLE, TRIPLE = document("double", 2.0), document("triple", 3.0)
FLAT = document("flat", 0.0)


def rollout(group: int = 0, index: int = 0, *, verdict: float | None = 1.0, run_id: str = "run-a") -> Rollout:
    made = make_rollout(run_id, group, index, reward=verdict, tokens=64)
    components = {} if verdict is None else {"verdict": verdict, "resolved": float(verdict == 1.0)}
    return replace(made, reward_components=components, reward_version=default_rules().version)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_store(tmp_path) as opened:
        yield opened


async def fill(store: Store, groups: int = 1, verdicts: tuple[float | None, ...] = (1.0, 0.0)) -> None:
    await store.put_run(run_spec(groups=groups, group_size=len(verdicts)))
    for group in range(groups):
        for index, verdict in enumerate(verdicts):
            made = replace(rollout(group, index, verdict=verdict), group_size=len(verdicts))
            await store.publish_scored(made)


async def rewards(store: Store) -> dict[str, tuple[float | None, str]]:
    heads = (await store.list_rollouts("run-a")).rollouts
    return {head.rollout_id[-10:]: (head.reward, head.reward_version) for head in heads}


async def mean_by_counts(store: Store) -> float:
    return (await store.counts(["run-a"]))["run-a"]["reward_sum"]


async def test_default_rules_are_current_until_replaced(store: Store) -> None:
    assert await store.rules.current_version() == default_rules().version
    double = await store.rules.put(DOUBLE, current=True)
    triple = await store.rules.put(TRIPLE, current=False)
    assert await store.rules.current_version() == double.version
    kept = await store.rules.list()
    assert [(one.version, one.current) for one in kept] == [
        (triple.version, False),
        (double.version, True),
        (default_rules().version, False),
    ]
    await store.rules.put(kept[-1].text, current=True)
    assert await store.rules.current_version() == default_rules().version
    with pytest.raises(BadRules):
        await store.rules.put("nonsense", current=True)
    with pytest.raises(UnknownRules):
        await store.rules.get("double-000000000000")


async def test_group_uses_rules_of_its_first_member(store: Store) -> None:
    await store.put_run(run_spec(groups=2))
    first = await store.publish_scored(rollout(0, 0))
    double = await store.rules.put(DOUBLE, current=True)
    second = await store.publish_scored(rollout(0, 1))
    assert (second.reward, second.reward_version) == (1.0, first.reward_version)
    third = await store.publish_scored(rollout(1, 0))
    assert (third.reward, third.reward_version) == (2.0, double.version)


async def test_pinned_run_uses_its_rules_or_fails(store: Store) -> None:
    await store.put_run(run_spec(groups=2))
    triple = await store.rules.put(TRIPLE, current=False)
    await store.rules.put(DOUBLE, current=True)
    kept = await store.publish_scored(rollout(0, 0), triple.version)
    assert (kept.reward, kept.reward_version) == (3.0, triple.version)
    with pytest.raises(UnknownRules, match="farm rewards list"):
        await store.publish_scored(rollout(1, 0), "gone-000000000000")


async def test_unjudged_rollout_has_no_reward_under_any_rules(store: Store) -> None:
    await store.rules.put(document("kind", 1.0, "[transforms.verdict]\nmissing = 1.0\n"), current=True)
    await fill(store, verdicts=(None, 1.0))
    assert [reward for reward, _ in (await rewards(store)).values()] == [1.0, None]
    flat = await store.rules.put(document("k2", 1.0, "[transforms.verdict]\nmissing = 9.0\n"), current=False)
    await store.rescore("run-a", flat.version)
    assert sorted((await rewards(store)).values(), key=str) == [(1.0, flat.version), (None, flat.version)]


async def test_rescore_updates_record_head_counts_and_filters(store: Store) -> None:
    await fill(store, groups=3)
    before = await store.rollout("run-a-g000000-000")
    double = await store.rules.put(DOUBLE, current=False)
    dry = await store.rescore("run-a", double.version, dry_run=True)
    assert (dry.groups, dry.before.mean, dry.after.mean) == ({"changed": 3}, 0.5, 1.0)
    assert set((await rewards(store)).values()) == {(1.0, default_rules().version), (0.0, default_rules().version)}
    done = await store.rescore("run-a", double.version)
    assert (done.groups, done.rollouts, done.next) == ({"changed": 3}, 6, None)
    assert (done.after.lowest, done.after.highest) == (0.0, 2.0)
    after = await store.rollout("run-a-g000000-000")
    assert before is not None
    assert after == replace(before, reward=2.0, reward_version=double.version)
    assert set((await rewards(store)).values()) == {(2.0, double.version), (0.0, double.version)}
    assert await mean_by_counts(store) == 6.0
    assert (await store.rescore("run-a", double.version)).groups == {"same": 3}
    flat = await store.rules.put(FLAT, current=False)
    await store.rescore("run-a", flat.version)
    await store.set_run_state("run-a", RunState.FINISHED)
    gone = await store.lease("c", "run-a", lease_s=LONG_S, max_groups=9, wanted=LeaseFilter(zero_variance="drop"))
    assert gone.groups == (), "all rewards are equal now"


async def test_accepted_record_is_republishable_after_rescore(store: Store) -> None:
    await fill(store)
    double = await store.rules.put(DOUBLE, current=False)
    await store.rescore("run-a", double.version)
    assert await store.publish(rollout(0, 0)), "the answer to the first time was lost"
    assert not await store.publish(replace(rollout(0, 0), attempt=2))
    assert (await rewards(store))["000000-000"] == (2.0, double.version)


async def test_rescore_keeps_leased_and_acked_groups(store: Store) -> None:
    await fill(store, groups=3)
    acked = await store.lease("c", "run-a", lease_s=LONG_S)
    await store.ack(acked.lease_id)
    held = await store.lease("c", "run-a", lease_s=LONG_S)
    double = await store.rules.put(DOUBLE, current=False)
    found = await store.rescore("run-a", double.version)
    assert found.groups == {"settled": 1, "leased": 1, "changed": 1}
    assert sorted(version for _, version in (await rewards(store)).values()) == sorted(
        [default_rules().version] * 4 + [double.version] * 2
    )
    await store.nack(held.lease_id)
    assert (await store.rescore("run-a", double.version)).groups == {"settled": 1, "changed": 1, "same": 1}
    again = await store.lease("c", "run-a", lease_s=LONG_S, max_groups=9)
    delivered = [await store.rollout(name) for group in again.groups for name in group.rollout_ids]
    assert {one.reward_version for one in delivered if one} == {double.version}


async def test_late_member_uses_rules_of_rescored_group(store: Store) -> None:
    await store.put_run(run_spec())
    await store.publish_scored(rollout(0, 0))
    double = await store.rules.put(DOUBLE, current=False)
    assert (await store.rescore("run-a", double.version)).groups == {"changed": 1, "absent": 1}
    with pytest.raises(RulesChanged):
        await store.publish(rollout(0, 1))
    late = await store.publish_scored(rollout(0, 1))
    assert (late.reward, late.reward_version) == (2.0, double.version)
    lease = await store.lease("c", "run-a", lease_s=LONG_S)
    assert lease.groups[0].zero_variance


async def test_concurrent_rescores_leave_one_version_per_group(store: Store) -> None:
    groups = 12
    await store.put_run(run_spec(groups=groups, group_size=4))
    versions = [(await store.rules.put(document(f"n{n}", n + 1.0), current=False)).version for n in range(4)]

    async def publish(index: int) -> None:
        for group in range(groups):
            await store.publish_scored(replace(rollout(group, index), group_size=4))

    async def learn() -> None:
        for _ in range(groups):
            lease = await store.lease("c", "run-a", lease_s=LONG_S)
            if lease.groups:
                held = [await store.rollout(name) for name in lease.groups[0].rollout_ids]
                assert len({one.reward_version for one in held if one}) == 1
                await store.nack(lease.lease_id)

    async def rescore(version: str) -> None:
        for _ in range(3):
            await store.rescore("run-a", version)

    await asyncio.gather(*(publish(index) for index in range(4)), *(rescore(version) for version in versions), learn())
    by_group: dict[str, set[tuple[float | None, str]]] = {}
    for name, found in (await rewards(store)).items():
        by_group.setdefault(name[:6], set()).add(found)
    assert len(by_group) == groups
    assert all(len(found) == 1 for found in by_group.values())
    for reward, version in set.union(*by_group.values()):
        assert reward == (1.0 if version == default_rules().version else versions.index(version) + 1.0)
    total = sum(reward or 0.0 for reward, _ in (await rewards(store)).values())
    assert await mean_by_counts(store) == pytest.approx(total)
    async with store._connection.client() as redis:
        assert await redis.keys("*:fresh*") == [] or await redis.ttl((await redis.keys("*:fresh*"))[0]) > 0
        assert await redis.ttl("farm:{run-a}:payload:run-a-g000000-000") == -1


async def test_rescore_resumes_at_next_group(store: Store) -> None:
    await fill(store, groups=3)
    double = await store.rules.put(DOUBLE, current=False)
    seen, first = 0, 0
    while True:
        page = await store.rescore("run-a", double.version, first=first, budget_s=0.0)
        seen += page.groups["changed"]
        if page.next is None:
            break
        first = page.next
    assert (seen, first) == (3, 2)


async def test_rollout_without_components_uses_reward_as_verdict(store: Store) -> None:
    await store.put_run(run_spec())
    for index in range(2):
        await store.publish(make_rollout(index=index, reward=0.5))
    double = await store.rules.put(DOUBLE, current=False)
    await store.rescore("run-a", double.version)
    assert set((await rewards(store)).values()) == {(1.0, double.version)}


async def test_deleted_run_leaves_no_reward_keys(store: Store) -> None:
    await fill(store)
    lease = await store.lease("c", "run-a", lease_s=LONG_S)
    await store.set_run_state("run-a", RunState.FINISHED)
    await store.ack(lease.lease_id)
    while await store.get_run("run-a") is not None:
        await store.expire(0.001)
    async with store._connection.client() as redis:
        left = {name for name in await redis.keys("farm:{run-a}*") if b":lease:" not in name}
    assert left == set()
    with pytest.raises(UnknownRun):
        await store.rescore("run-a", default_rules().version)


BASE = "farm:{run-a}"


async def kept(store: Store) -> dict[bytes, object]:
    """All that Redis holds of the run, but for what is staged."""
    found: dict[bytes, object] = {}
    async with store._connection.client() as redis:
        for name in await redis.keys(f"{BASE}*"):
            if b":fresh" not in name:
                found[name] = await redis.dump(name)
    return found


@pytest.mark.parametrize("second", ["inf", "-inf", "nan", "1e309", "none", "1.0"])
async def test_rescore_with_invalid_reward_changes_nothing(store: Store, second: str) -> None:
    await fill(store)
    before = await kept(store)
    told = []
    async with store._connection.client() as redis:
        for index, reward in enumerate(("2.0", second)):
            name = f"run-a-g000000-{index:03}"
            await redis.set(f"{BASE}:fresh:token:{name}", b"payload")
            await redis.set(f"{BASE}:fresh-head:token:{name}", b"head")
            told.append([name, str(index), default_rules().version, reward])
    answer = await store._connection.run_script(BASE, "rescore", "run-a-g000000", "new-1", "token", json.dumps(told))
    if second == "1.0":
        assert answer == b"done"
        assert await kept(store) != before
    else:
        assert answer == b"unreadable"
        assert await kept(store) == before


async def put_reward(store: Store, name: str, reward: float) -> None:
    """As a farm stored it that let rules give a reward without end."""
    async with store._connection.client() as redis:
        record = {**unpack(unpack_frame(await redis.get(f"{BASE}:payload:{name}"))), "reward": reward}
        await redis.set(f"{BASE}:payload:{name}", pack_frame(pack(record)))
        head = {key: value for key, value in record.items() if key != "segments"}
        await redis.hset(f"{BASE}:heads", name, pack(head))


async def test_rescore_repairs_record_with_infinite_reward(
    store: Store,
) -> None:
    """The unreadable record is named, and the other records are still listed and rescored."""
    await fill(store, groups=2)
    await put_reward(store, "run-a-g000000-001", math.inf)
    page = await store.list_rollouts()
    assert page.unreadable == ("run-a-g000000-001",)
    assert len(page.rollouts) == 3
    double = await store.rules.put(DOUBLE, current=False)
    done = await store.rescore("run-a", double.version)
    assert (done.groups, done.before.judged, done.before.highest) == ({"changed": 2}, 3, 1.0)
    page = await store.list_rollouts()
    assert (page.unreadable, len(page.rollouts)) == ((), 4)
    assert await mean_by_counts(store) == 4.0


async def test_rescore_skips_groups_with_unreadable_records(
    store: Store,
) -> None:
    await fill(store, groups=3)
    async with store._connection.client() as redis:
        await redis.set(f"{BASE}:payload:run-a-g000000-001", b"no frame")
        await redis.set(f"{BASE}:payload:run-a-g000001-000", pack_frame(pack({"reward": 1.0})))
    double = await store.rules.put(DOUBLE, current=False)
    done = await store.rescore("run-a", double.version)
    assert done.groups == {"unreadable": 2, "changed": 1}
    assert (await rewards(store))["000000-000"] == (1.0, default_rules().version)

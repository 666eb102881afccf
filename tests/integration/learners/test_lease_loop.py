"""The lease loop against a real gateway and Redis."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from farm.client import FarmClient
from farm.learners import BatchStillOpen, LeaseLoop, Leasing, RunFailed
from farm.store import RunState, Store
from tests.support.gateway_server import running_gateway
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec

pytestmark = pytest.mark.redis
Found = TypeVar("Found")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_store(tmp_path) as opened:
        yield opened


@pytest.fixture
async def url(store: Store, tmp_path: Path) -> AsyncIterator[str]:
    async with running_gateway(store, tmp_path, tokens={"operator": "o"}) as served:
        yield served


async def using(url: str, work: Callable[[FarmClient], Found]) -> Found:
    def call() -> Found:
        with FarmClient(url, "o") as client:
            return work(client)

    return await asyncio.to_thread(call)


async def fill(store: Store, *, groups: int, unjudged: tuple[int, ...] = (), version: int = 4) -> None:
    await store.put_run(run_spec(groups=groups))
    for group in range(groups):
        for index in range(2):
            reward = None if group in unjudged else float(index)
            await store.publish(make_rollout(group=group, index=index, reward=reward, tokens=16, version=version))
    await store.set_run_state("run-a", RunState.FINISHED)


def acked(farm: FarmClient) -> int:
    return farm.run("run-a").summary.groups_acked


async def test_batches_are_acked_after_their_step(store: Store, url: str) -> None:
    await fill(store, groups=5)

    def work(farm: FarmClient) -> list[tuple[int, int, int]]:
        steps = []
        with LeaseLoop(farm, Leasing("t", "run-a"), groups=2) as loop:
            for batch in loop:
                with batch:
                    during = acked(farm)
                steps.append((len(batch.samples), during, acked(farm)))
        return steps

    assert await using(url, work) == [(4, 0, 2), (4, 2, 4), (2, 4, 5)]


async def test_failed_step_gives_groups_back(store: Store, url: str) -> None:
    await fill(store, groups=1)

    def work(farm: FarmClient) -> list[int]:
        with LeaseLoop(farm, Leasing("t", "run-a")) as loop:
            with pytest.raises(ZeroDivisionError), loop.next_batch() or pytest.fail("no batch"):
                _ = 1 / 0
            again = loop.next_batch()
            assert again
            with again:
                return [group.group.deliveries for group in again.groups]

    assert await using(url, work) == [2]


async def test_groups_without_samples_do_not_count(store: Store, url: str) -> None:
    await fill(store, groups=4, unjudged=(0, 2))

    def work(farm: FarmClient) -> tuple[int, int]:
        with LeaseLoop(farm, Leasing("t", "run-a"), groups=2) as loop:
            batch = loop.next_batch()
            assert batch
            batch.ack()
            assert loop.next_batch() is None
            return len(batch.groups), acked(farm)

    assert await using(url, work) == (2, 4)


async def test_open_batch_blocks_next_one(store: Store, url: str) -> None:
    await fill(store, groups=2)

    def work(farm: FarmClient) -> int:
        with LeaseLoop(farm, Leasing("t", "run-a")) as loop:
            assert loop.next_batch()
            with pytest.raises(BatchStillOpen, match="with batch"):
                loop.next_batch()
        lease = farm.lease("other", run_id="run-a", max_groups=2)
        assert lease
        return len(lease.groups)

    assert await using(url, work) == 2


async def test_lease_is_extended_while_step_runs(store: Store, url: str) -> None:
    """Another consumer gets nothing for three times the length of the lease."""
    await fill(store, groups=1)

    def work(farm: FarmClient) -> int:
        with LeaseLoop(farm, Leasing("t", "run-a", lease_s=2.0)) as loop:
            batch = loop.next_batch()
            assert batch
            assert farm.lease("other", run_id="run-a", wait_s=6.0) is None
            batch.ack()
        return acked(farm)

    assert await using(url, work) == 1


async def test_rollouts_of_lost_lease_are_trained_once(store: Store, url: str) -> None:
    """Another client ends the lease during the step, as an expiry does."""
    await fill(store, groups=2)

    def work(farm: FarmClient) -> tuple[list[str], int]:
        trained = []
        with LeaseLoop(farm, Leasing("t", "run-a")) as loop:
            for batch in loop:
                with batch:
                    trained += [group.group.group_id for group in batch.groups]
                    if len(trained) == 1:
                        (lease_id,) = loop.lease_ids
                        farm.nack(lease_id)
        return trained, acked(farm)

    trained, acks = await using(url, work)
    assert sorted(trained) == ["run-a-g000000", "run-a-g000001"]
    assert acks == 2


async def test_stale_groups_are_not_leased(store: Store, url: str) -> None:
    await fill(store, groups=2, version=4)

    def work(farm: FarmClient) -> object:
        with LeaseLoop(farm, Leasing("t", "run-a", max_staleness=2), policy_version=lambda: 9) as loop:
            return loop.next_batch()

    assert await using(url, work) is None


async def test_failed_run_raises(store: Store, url: str) -> None:
    await store.put_run(run_spec(groups=1))
    await store.set_run_state("run-a", RunState.FAILED)

    def work(farm: FarmClient) -> None:
        with LeaseLoop(farm, Leasing("t", "run-a")) as loop, pytest.raises(RunFailed, match="farm runs show"):
            loop.next_batch()

    await using(url, work)


def test_loop_needs_a_group() -> None:
    with FarmClient("http://127.0.0.1:1", retry_s=0) as farm, pytest.raises(ValueError, match="at least 1 group"):
        LeaseLoop(farm, Leasing(), groups=0)


async def test_wait_for_groups_of_running_run(store: Store, url: str) -> None:
    """The group is published while the loop waits."""
    await store.put_run(run_spec(groups=1))

    async def publish() -> None:
        for index in range(2):
            await store.publish(make_rollout(index=index, reward=1.0, tokens=16))

    def work(farm: FarmClient) -> int:
        with LeaseLoop(farm, Leasing("t", "run-a", wait_s=0.1)) as loop:
            batch = loop.next_batch()
            assert batch
            batch.ack()
            return len(batch.samples)

    waiting = asyncio.create_task(using(url, work))
    await publish()
    assert await waiting == 2

"""A scheduler that restarts still knows the nodes of its farm."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from farm.scheduler.messages import NodeLeft, NodeLost
from farm.scheduler.service import SchedulerService
from farm.scheduler.settings import SchedulerSettings
from farm.store import NodeListStore, Store
from tests.support.farm.scheduler_values import beat
from tests.support.redis_server import running_redis

PATIENT = SchedulerSettings(lost_after_s=600.0)
HASTY = SchedulerSettings(lost_after_s=0.5)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with running_redis(tmp_path / "redis") as server:
        store = Store(server.url)
        yield store
        await store.close()


@asynccontextmanager
async def scheduler(
    store: Store, *, life: str = "1", settings: SchedulerSettings = PATIENT
) -> AsyncIterator[SchedulerService]:
    shell = SchedulerService(store, lambda node_id, commands: None, settings=settings, life=life)
    await shell.open()
    yield shell
    await shell.close()


def states(shell: SchedulerService) -> dict[str, str]:
    return {node.node_id: node.state for node in shell.status().nodes}


async def until_kept(book: NodeListStore, *words: bytes, without: bytes | None = None) -> None:
    while True:
        kept = await book.get() or b""
        if all(word in kept for word in words) and (without is None or without not in kept):
            return
        await asyncio.sleep(0.02)


async def until_lost(shell: SchedulerService, node_id: str) -> None:
    while states(shell).get(node_id) != "lost":  # noqa: ASYNC110 - a status is asked for
        await asyncio.sleep(0.02)


async def test_lost_node_stays_listed_until_next_heartbeat(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    async with scheduler(store) as shell:
        shell.handle_events([beat("a"), beat("b"), NodeLost("a")])
        (before,) = [node for node in shell.status().nodes if node.state == "lost"]
        await until_kept(store.fleet, b'"a"', b'"b"', b"lost_at")
    caplog.clear()
    for life in ("1", "2", "2"):
        async with scheduler(store, life=life) as shell:
            (found,) = shell.status().nodes
            assert (found.node_id, found.state, found.slots, found.running) == ("a", "lost", 0, 0)
            assert found.lost_at == pytest.approx(before.lost_at, abs=2.0)
            assert found.why == before.why
            assert found.seen_s >= 0.0
            shell.handle_events([beat("b")])
            await until_kept(store.fleet, b'"a"', b'"b"', f'"life":"{life}"'.encode())
    assert "the node is lost" not in caplog.text, "that was logged when it was lost"
    async with scheduler(store) as shell:
        shell.handle_events([beat("a"), beat("b")])
        assert states(shell) == {"a": "open", "b": "open"}
        await until_kept(store.fleet, b'"a"', without=b"lost_at")


async def test_silent_node_is_lost_after_scheduler_restart(store: Store) -> None:
    async with scheduler(store) as shell:
        shell.handle_events([beat("a"), beat("b"), beat("c"), beat("d"), NodeLeft("d")])
        await until_kept(store.fleet, b'"a"', b'"b"', b'"c"', without=b'"d"')
    async with scheduler(store) as shell:
        assert states(shell) == {}, "they have time to say that they live"
        shell.handle_events([beat("b"), NodeLeft("c")])
        await until_kept(store.fleet, b'"a"', without=b'"c"')
    async with scheduler(store, settings=HASTY) as shell:
        await until_lost(shell, "a")
        why = next(node.why for node in shell.status().nodes if node.node_id == "a")
        assert why.endswith("no heartbeat for 0.5 s after the scheduler had restarted")
        await until_kept(store.fleet, b'"a"', b"lost_at")


async def test_next_farm_ignores_nodes_of_stopped_farm(store: Store) -> None:
    async with scheduler(store) as shell:
        shell.handle_events([beat("head"), beat("b")])
        await until_kept(store.fleet, b'"head"', b'"b"')
    async with scheduler(store, life="2", settings=HASTY) as shell:
        shell.handle_events([beat("head"), beat("c"), NodeLost("c")])
        await until_lost(shell, "head")
        assert states(shell) == {"head": "lost", "c": "lost"}


async def test_lost_draining_node_rejoins_as_draining(store: Store) -> None:
    ordered: list[Any] = []
    async with scheduler(store) as shell:
        shell.handle_events([beat("a", join="x"), beat("a", join="x", draining=True), NodeLost("a")])
        await until_kept(store.fleet, b"draining", b"lost_at")
    shell = SchedulerService(store, lambda node_id, commands: ordered.extend(commands), settings=PATIENT, life="1")
    await shell.open()
    shell.handle_events([beat("a", join="x", incarnation="2")])
    assert states(shell) == {"a": "draining"}
    assert [(order.node_id, order.drain) for order in ordered] == [("a", True)]
    await shell.close()


async def test_scheduler_starts_with_unreadable_node_list(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    await store.fleet.put(b'{"life": 1')
    async with scheduler(store) as shell:
        assert shell.status().nodes == ()
    assert "the nodes that the store has kept cannot be read" in caplog.text

"""A viewer's token is stolen: searches of logs that find nothing, in all threads of the gateway."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from farm.gateway.routes import logs
from farm.logs import LogPage, LogQuery, read_logs
from tests.support.gateway_server import AS_OPERATOR, running_gateway
from tests.support.redis_server import running_store

pytestmark = pytest.mark.redis

THREADS = 64
"""More than asyncio's default executor has."""


class Searches:
    """Searches of the gateway's own logs that take until the test lets them end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self, directory: Path, query: LogQuery) -> LogPage:
        self.begun.release()
        self.may_end.wait()
        return read_logs(directory, query)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    found = Searches()
    monkeypatch.setattr(logs, "read_logs", found)
    return found


@pytest.fixture
async def http(tmp_path: Path, searches: Searches) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path) as url,
        httpx.AsyncClient(base_url=url, timeout=60.0, headers=AS_OPERATOR) as client,
    ):
        yield client
        searches.may_end.set()


async def test_all_threads_are_taken_without_the_bound(searches: Searches, tmp_path: Path) -> None:
    """The old mechanism: each search has a thread, and work of others finds none."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(4))
    running = [asyncio.create_task(asyncio.to_thread(searches, tmp_path, LogQuery())) for _ in range(THREADS)]
    other = asyncio.create_task(asyncio.to_thread(int))
    await asyncio.sleep(0)  # all of them are handed over
    for _ in range(4):
        searches.begun.acquire()
    assert not other.done()
    searches.may_end.set()
    await asyncio.gather(*running, other)


async def test_searches_leave_threads_to_others(
    http: httpx.AsyncClient, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_WAIT_S", 0.2)
    asked = [asyncio.create_task(http.get("/v1/logs", params={"contains": "x"})) for _ in range(THREADS)]
    ended, running = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    answer = await http.put("/v1/rewards", json={"document": 'name = "a"\n[weights]\nverdict = 1.0\n'})  # in a thread
    assert answer.status_code == 200
    while len(ended) < THREADS - logs.MOST_SEARCHES:
        more, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        ended |= more
    assert {each.result().status_code for each in ended} == {503}
    assert "repeat this one" in next(iter(ended)).result().json()["detail"]
    assert [searches.begun.acquire(blocking=False) for _ in range(logs.MOST_SEARCHES + 1)] == [
        *[True] * logs.MOST_SEARCHES,
        False,
    ]
    searches.may_end.set()
    assert {(await each).status_code for each in running} == {200}


async def test_times_beyond_the_calendar_are_answered(tmp_path: Path) -> None:
    async with (
        running_store(tmp_path) as store,
        running_gateway(store, tmp_path) as url,
        httpx.AsyncClient(base_url=url, timeout=60.0, headers=AS_OPERATOR) as client,
    ):
        (tmp_path / "log").mkdir(exist_ok=True)
        (tmp_path / "log" / "a.log").write_text("")
        for until in ("9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"):
            answer = await client.get("/v1/logs", params={"until": until, "since": until})
            assert answer.status_code == 200, answer.text

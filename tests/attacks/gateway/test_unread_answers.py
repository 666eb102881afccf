"""Clients with a token ask for large answers and read none of them, so that the gateway keeps each in its memory."""

import asyncio
import select
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.gateway_server import AS_OPERATOR, OPERATOR, running_gateway
from tests.support.redis_server import running_store
from tests.support.rollouts import make_rollout, run_spec

pytestmark = pytest.mark.redis

ROLLOUT = replace(make_rollout(), patch="p" * 7_000_000)
PATH = f"/v1/rollouts/{ROLLOUT.rollout_id}/turns"


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    (tmp_path / "tasksets" / "demo").mkdir(parents=True)
    async with running_store(tmp_path) as store, running_gateway(store, tmp_path, idle_s=2) as found:
        await store.put_run(run_spec())
        await store.publish_scored(ROLLOUT)
        yield found


@contextmanager
def asking(url: str, connection: str) -> Iterator[socket.socket]:
    """Send a request on a socket with a small buffer, and yield the socket."""
    place = urlsplit(url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((place.hostname, place.port))
        head = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OPERATOR}\r\n"
        client.sendall(f"{head}Connection: {connection}\r\n\r\n".encode())
        yield client


def wait_for_end(client: socket.socket) -> None:
    """Wait until the gateway resets the connection, and read nothing meanwhile."""
    poll = select.poll()
    poll.register(client, 0)  # an end with an error is always reported
    while not poll.poll(10_000):
        pass


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.timeout(40)
async def test_answer_that_nobody_reads_is_dropped(url: str, connection: str) -> None:
    with asking(url, connection) as client:
        await asyncio.to_thread(wait_for_end, client)
    async with httpx.AsyncClient(base_url=url, headers=AS_OPERATOR, timeout=60) as http:
        assert (await http.get(PATH)).json()["patch"] == ROLLOUT.patch


async def test_slow_reader_gets_its_answer(url: str) -> None:
    """A buffer of a few kilobytes makes the answer arrive in thousands of steps."""
    loop = asyncio.get_running_loop()
    with asking(url, "close") as client:
        client.setblocking(False)
        size = 0
        while part := await loop.sock_recv(client, 64 * 1024):
            size += len(part)
    assert size > len(ROLLOUT.patch)

"""The embedded redis-server: its end, its loss, its refusals."""

import asyncio
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import psutil
import pytest

from farm.store import EmbeddedRedis, LeaseLost, RunState, Store, StoreUnavailable, StreamState
from tests.redis_server import running_redis
from tests.rollouts import make_rollout, run_spec
from tests.services import require_program

pytestmark = pytest.mark.redis


@pytest.fixture(autouse=True)
def _redis_is_installed() -> None:
    require_program("redis-server")


async def test_a_killed_server_comes_back_with_what_was_acked_and_what_was_not(tmp_path: Path) -> None:
    async with running_redis(tmp_path) as server:
        store = Store(server.url)
        await store.put_run(run_spec(groups=3))
        for group in range(3):
            for index in range(2):
                await store.publish(make_rollout(group=group, index=index, tokens=64))
        acked = await store.lease("c", "run-a", lease_s=600)
        await store.ack(acked.lease_id)
        held = await store.lease("c", "run-a", lease_s=600)
        os.kill(server.pid, signal.SIGKILL)
        await server.wait()
        await store.close()
    async with EmbeddedRedis(tmp_path, port=server.port) as again:
        store = Store(again.url)
        left = await store.lease("d", "run-a", lease_s=600, max_groups=9)
        names = [lease.groups[0].group_id for lease in (acked, held)] + [group.group_id for group in left.groups]
        assert sorted(names) == [f"run-a-g00000{number}" for number in range(3)]
        assert (await store.rollout("run-a-g000000-000")) is not None
        await store.set_run_state("run-a", RunState.FINISHED)
        await store.ack(held.lease_id)
        assert await store.ack(left.lease_id) is StreamState.DRAINED
        assert await store.ack(acked.lease_id) is StreamState.DRAINED
        with pytest.raises(LeaseLost):
            await store.nack(held.lease_id)
        await store.close()


async def test_the_server_is_gone_with_its_block_and_keeps_its_secret(tmp_path: Path) -> None:
    async with EmbeddedRedis(tmp_path) as server:
        pid = server.pid
        command = psutil.Process(pid).cmdline()
        secret = (tmp_path / "redis" / "password").read_text()
        assert secret in server.url
        assert not any(secret in word for word in command)
        for name in ("password", "redis.conf"):
            assert stat.S_IMODE((tmp_path / "redis" / name).stat().st_mode) == 0o600
        stranger = Store(f"redis://127.0.0.1:{server.port}")
        with pytest.raises(StoreUnavailable, match="password"):
            await stranger.ping()
        await stranger.close()
    assert not psutil.pid_exists(pid)


async def test_the_server_does_not_outlive_an_owner_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from farm.store import EmbeddedRedis\n"
        "async def main():\n"
        "    async with EmbeddedRedis(pathlib.Path(sys.argv[1])) as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    server = psutil.Process(int(await owner.stdout.readline()))
    owner.kill()
    await owner.wait()
    await asyncio.to_thread(server.wait, 30)
    assert not server.is_running()


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StoreUnavailable, match=f"port {port} on 127.0.0.1 is taken"):
            async with EmbeddedRedis(tmp_path, port=port):
                pass


async def test_an_address_of_another_machine_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"192\.0\.2\.1"):
        async with EmbeddedRedis(tmp_path, bind="192.0.2.1"):
            pass


async def test_a_machine_without_redis_server_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreUnavailable, match="apt-get install redis-server"):
        async with EmbeddedRedis(tmp_path):
            pass


async def test_no_redis_is_one_line_without_the_password(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        store = Store(f"redis://someone:hunter2@127.0.0.1:{port}/0")
        with pytest.raises(StoreUnavailable) as caught:
            await store.ping()
        await store.close()
    message = str(caught.value)
    assert f"127.0.0.1:{port}" in message
    assert "redis_url" in message
    assert "\n" not in message
    assert "hunter2" not in message
    assert "someone" not in message


@pytest.mark.parametrize("url", ["", "nonsense", "http://x", "redis://h:port"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="redis_url"):
        Store(url)

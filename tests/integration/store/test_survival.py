"""The embedded redis-server: its end, its loss, its refusals."""

import asyncio
import os
import signal
import socket
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from farm.store import EmbeddedRedis, LeaseNotHeld, RunState, Store, StoreUnavailable, StreamState
from tests.support.redis_server import running_redis
from tests.support.rollouts import make_rollout, run_spec
from tests.support.services import require_program

pytestmark = pytest.mark.redis


Found = TypeVar("Found")


async def until_served(ask: Callable[[], Awaitable[Found]]) -> Found:
    """What a node agent does: asks again while the store is away."""
    while True:
        try:
            return await ask()
        except StoreUnavailable:
            continue


async def killed(server: EmbeddedRedis) -> None:
    """Kill the server, and return once another one answers in its place."""
    pid = server.pid
    os.kill(pid, signal.SIGKILL)
    store = Store(server.url)
    await until_served(store.ping)
    while server.pid == pid:
        await until_served(store.ping)
    await store.close()


@pytest.fixture(autouse=True)
def _redis_is_installed() -> None:
    require_program("redis-server")


async def test_killed_server_restarts_with_acks_and_leases(tmp_path: Path) -> None:
    async with running_redis(tmp_path) as server:
        store = Store(server.url)
        await store.put_run(run_spec(groups=3))
        for group in range(3):
            for index in range(2):
                await store.publish(make_rollout(group=group, index=index, tokens=64))
        acked = await store.lease("c", "run-a", lease_s=600)
        await store.ack(acked.lease_id)
        held = await store.lease("c", "run-a", lease_s=600)
        await killed(server)
        left = await until_served(lambda: store.lease("d", "run-a", lease_s=600, max_groups=9))
        names = [lease.groups[0].group_id for lease in (acked, held)] + [group.group_id for group in left.groups]
        assert sorted(names) == [f"run-a-g00000{number}" for number in range(3)]
        await store.close()
    async with EmbeddedRedis(tmp_path, port=server.port) as again:
        store = Store(again.url)
        assert (await store.rollout("run-a-g000000-000")) is not None
        await store.set_run_state("run-a", RunState.FINISHED)
        await store.ack(held.lease_id)
        assert (await store.ack(left.lease_id)).stream is StreamState.DRAINED
        assert (await store.ack(acked.lease_id)).stream is StreamState.DRAINED
        with pytest.raises(LeaseNotHeld):
            await store.nack(held.lease_id)
        await store.close()


async def test_publishing_survives_server_kill_without_loss(tmp_path: Path) -> None:
    async with running_redis(tmp_path) as server:
        store = Store(server.url)
        await store.put_run(run_spec(groups=60))

        async def publish(group: int, index: int) -> bool:
            rollout = make_rollout(group=group, index=index, tokens=64)
            return await until_served(lambda: store.publish(rollout))

        everything = [asyncio.create_task(publish(group, index)) for group in range(60) for index in range(2)]
        await everything[10]
        await killed(server)
        assert all(await asyncio.gather(*everything))
        lease = await store.lease("c", "run-a", lease_s=600, max_groups=100)
        assert len({group.group_id for group in lease.groups}) == len(lease.groups) == 60
        await store.close()


async def test_repeatedly_killed_server_is_not_restarted(tmp_path: Path) -> None:
    async with running_redis(tmp_path) as server:
        for _ in range(4):
            await killed(server)
        os.kill(server.pid, signal.SIGKILL)
        assert "redis-server died 5 times in a minute" in await server.death()


async def test_server_ends_with_context_and_protects_password(tmp_path: Path) -> None:
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


async def test_server_ends_with_killed_owner(tmp_path: Path) -> None:
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


async def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StoreUnavailable, match=f"port {port} on 127.0.0.1 is taken"):
            async with EmbeddedRedis(tmp_path, port=port):
                pass


async def test_address_of_another_machine_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"192\.0\.2\.1"):
        async with EmbeddedRedis(tmp_path, bind="192.0.2.1"):
            pass


async def test_missing_redis_server_error_names_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreUnavailable, match="apt-get install redis-server"):
        async with EmbeddedRedis(tmp_path):
            pass


async def test_failed_start_error_quotes_server_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "redis-server"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'redis-server: libssl.so.3 is missing' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(StoreUnavailable, match=r"did not start: redis-server: libssl\.so\.3 is missing"):
        async with EmbeddedRedis(tmp_path):
            pass


async def test_unreachable_redis_error_omits_password(tmp_path: Path) -> None:
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
def test_invalid_redis_url_is_refused(url: str) -> None:
    with pytest.raises(StoreUnavailable, match="redis_url"):
        Store(url)

"""The tool server when the machine has nothing left to give it."""

import asyncio
import errno
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.errors import PathError
from sandboxes.toolserver.client import ToolServer
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.serving import Served, eventually, ordinary, out, spilled

WAIT_S = 60.0


@pytest.fixture
async def served(toolbox: Toolbox, tmp_path: Path) -> AsyncIterator[Served]:
    async with ordinary(toolbox, tmp_path) as served:
        yield served


async def test_commands_fail_without_free_descriptors(served: Served) -> None:
    assert out(await served.server.exec(["echo", "up"], timeout_s=WAIT_S)) == "up\n"
    in_use = served.process.num_fds()
    served.process.rlimit(resource.RLIMIT_NOFILE, (in_use + 8, in_use + 8))
    calls = [served.server.exec(["sleep", "0.5"], timeout_s=WAIT_S) for _ in range(20)]
    results = await asyncio.gather(*calls)
    failed = [result for result in results if result.exit_code == 126]
    assert 0 < len(failed) < 20
    assert {result.exit_code for result in results} == {0, 126}
    assert out(await served.server.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    assert await eventually(lambda: served.process.num_fds() <= in_use)


async def test_new_clients_are_refused_without_free_descriptors(served: Served) -> None:
    in_use = served.process.num_fds()
    soft, hard = served.process.rlimit(resource.RLIMIT_NOFILE)
    served.process.rlimit(resource.RLIMIT_NOFILE, (in_use, hard))
    for _ in range(5):
        reader, writer = await asyncio.open_unix_connection(served.socket)
        assert await reader.read() == b""
        writer.close()
    await served.server.ping()
    served.process.rlimit(resource.RLIMIT_NOFILE, (soft, hard))
    other = await ToolServer.connect(served.socket, expected_pid=served.process.pid, timeout_s=WAIT_S)
    await other.close()


async def test_call_without_memory_is_refused(served: Served) -> None:
    (served.home / "big").write_bytes(bytes(4_000_000))
    room = served.process.memory_info().vms + 2_000_000
    served.process.rlimit(resource.RLIMIT_AS, (room, room))
    with pytest.raises(PathError) as refused:
        await served.server.read_file("big")
    assert refused.value.errno == errno.ENOMEM
    assert await served.server.read_file("big", limit=100_000) == bytes(100_000)
    result = await served.server.exec(["echo", "on"], timeout_s=WAIT_S)
    assert result.exit_code is not None


async def test_file_size_limit_is_an_error(served: Served) -> None:
    served.process.rlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    with pytest.raises(PathError, match="File too large"):
        await served.server.write_file("f", bytes(5000))
    assert list(served.home.iterdir()) == []
    result = await served.server.exec(["seq", "1000"], timeout_s=WAIT_S, output_limit=10)
    assert result.stdout.elided == 3893 - 10
    assert result.spill is not None
    assert spilled(result) == b"".join(b"%d\n" % n for n in range(1, 1001))[:1000]


async def test_ended_calls_leave_no_resources(served: Served) -> None:
    in_use = served.process.num_fds()
    for n in range(100):
        await served.server.exec(["echo", "x" * n], stdin=b"x" * n, timeout_s=WAIT_S)
        await served.server.exec(["no-such-program"], timeout_s=WAIT_S)
        assert (await served.server.shell("exit", session=f"s{n}", timeout_s=WAIT_S)).shell_lost
        await served.server.walk(".")
    await served.server.exec(["sleep", "60"], timeout_s=0.01)
    assert await eventually(lambda: served.process.num_fds() == in_use)
    assert await eventually(lambda: served.process.children() == [])

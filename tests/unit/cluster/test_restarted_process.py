"""A process that is started again when it dies or hangs."""

import asyncio
import errno
import logging
import os
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest

from farm.cluster import ClusterError, restarted_process
from farm.cluster.restarted_process import Health, KeptProcess, ProcessSpec

Changes = asyncio.Queue[tuple[int | None, str]]


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[KeptProcess, Changes]:
    """Return a process that cannot start while ``tmp_path/refused`` exists, and the queue of its state changes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    changes: Changes = asyncio.Queue()
    spec = ProcessSpec("gateway", "tests.unit.cluster.restarted_child", tmp_path / "refused", tmp_path / "gateway.log")
    process = KeptProcess(spec, on_change=lambda pid, trouble: changes.put_nowait((pid, trouble)))
    return process, changes


async def test_killed_process_is_restarted_with_backoff(
    kept: tuple[KeptProcess, Changes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keeper, changes = kept
    async with keeper:
        first, _ = await changes.get()
        assert first is not None
        (tmp_path / "refused").touch()
        os.kill(first, signal.SIGKILL)
        assert await changes.get() == (None, "its process was killed by SIGKILL")
        pid, trouble = await changes.get()
        assert pid is None
        assert "the gateway did not start: its process ended with exit code 3; its log is " in trouble
        (tmp_path / "refused").unlink()
        second, trouble = await changes.get()
        assert second is not None
        assert (second != first, trouble) == (True, "")
    assert not psutil.pid_exists(second)
    waits = [message.rpartition(" in ")[2] for message in caplog.messages if "starts again in" in message]
    assert waits == ["0.5 s", "1.0 s"]
    assert caplog.messages[-1] == f"the gateway serves again, as process {second}"


async def test_failed_state_callback_does_not_stop_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    changes: Changes = asyncio.Queue()

    def on_change(pid: int | None, trouble: str) -> None:
        changes.put_nowait((pid, trouble))
        raise OSError(errno.ENOSPC, "No space left on device")

    module, refused = "tests.unit.cluster.restarted_child", tmp_path / "refused"
    spec = ProcessSpec("gateway", module, refused, tmp_path / "gateway.log")
    async with KeptProcess(spec, on_change=on_change):
        first, _ = await changes.get()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert (await changes.get())[0] is None
        second, _ = await changes.get()
        assert second is not None
        assert psutil.pid_exists(second)
    assert not psutil.pid_exists(second)
    assert "the state of the gateway could not be written" in caplog.text


async def test_failed_first_start_raises(kept: tuple[KeptProcess, Changes], tmp_path: Path) -> None:
    (tmp_path / "refused").touch()
    keeper, _ = kept
    with pytest.raises(ClusterError, match=r"the gateway did not start: .* exit code 3; its log is .*gateway\.log"):
        await keeper.__aenter__()


async def test_hung_process_is_restarted_and_slow_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setattr(restarted_process, "_STOP_S", 1.0)
    changes: Changes = asyncio.Queue()
    (tmp_path / "silent").write_text("2")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/healthz"
        given, log = (tmp_path, listener.fileno()), tmp_path / "gateway.log"
        keeper = KeptProcess(
            ProcessSpec("gateway", "tests.unit.cluster.answering_child", given, log, [listener.fileno()]),
            on_change=lambda pid, trouble: changes.put_nowait((pid, trouble)),
            health=Health(url, every_s=0.1, timeout_s=2.0, failures=3),
        )
        async with keeper:
            first, _ = await changes.get()
            assert first is not None
            while not (tmp_path / "answered").exists():  # noqa: ASYNC110 - the process tells only a file
                await asyncio.sleep(0.05)
            assert "(2 of 3)" in caplog.text
            assert "(3 of 3)" not in caplog.text
            late = [await changes.get() for _ in range(3)]
            assert [(pid, said[:16]) for pid, said in late] == [
                (first, "1 of 3 requests "),
                (first, "2 of 3 requests "),
                (first, ""),
            ]
            assert re.search(r"unless it answers, it is ended by \d\d:\d\d:\d\d UTC and started again$", late[1][1])
            assert changes.empty(), "two late answers do not end the process"
            os.kill(first, signal.SIGSTOP)
            assert [(await changes.get())[0] for _ in range(3)] == [first] * 3
            assert await changes.get() == (None, f"process {first} hung: 3 requests of {url} had no answer")
            assert not psutil.pid_exists(first)
            second, trouble = await changes.get()
            assert second is not None
            assert trouble == ""
    assert not psutil.pid_exists(second)


async def test_dead_process_is_not_restarted_after_exit(
    kept: tuple[KeptProcess, Changes],
) -> None:
    keeper, changes = kept
    async with keeper:
        first, _ = await changes.get()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert await changes.get() == (None, "its process was killed by SIGKILL")
    assert changes.empty()
    assert [one for one in psutil.Process().children() if "tests.unit.cluster.restarted_child" in one.cmdline()] == []

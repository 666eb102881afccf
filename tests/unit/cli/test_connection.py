"""What a command says if the farm of this machine is up and its gateway is not."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest

from farm.cli.connection import connected
from farm.cli.errors import CliError
from farm.cluster import FarmInfo
from farm.cluster.state_dir import locked, record_gateway_state, write_farm_info
from farm.config import Config
from tests.support.services import kept_port


def test_unreachable_gateway_error_names_url_and_log(tmp_path: Path) -> None:
    """The error names no option of another command."""
    config = Config(state_dir=tmp_path)
    with locked(tmp_path), kept_port() as port:
        url = f"http://127.0.0.1:{port}"
        write_farm_info(FarmInfo(tmp_path, "head", os.getpid(), url, "", "node", time.time()))
        with pytest.raises(CliError) as caught, connected(config, retry_s=0.0) as client:
            client.runs()
    said = str(caught.value)
    assert said.startswith(f"the farm is up (process {os.getpid()}), and its gateway does not answer: {url}: ")
    assert f"{tmp_path}/log/farm.log says why" in said
    assert "--url" not in said


@contextmanager
def silent_gateway(state_dir: Path) -> Iterator[tuple[str, socket.socket]]:
    """Record a farm whose gateway accepts connections and sends nothing. Yield its URL and its listener."""
    with locked(state_dir), socket.create_server(("127.0.0.1", 0)) as hung:
        url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        write_farm_info(FarmInfo(state_dir, "head", os.getpid(), url, "", "node", time.time()))
        yield url, hung


def test_silent_gateway_without_patience_is_an_error(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path)
    with silent_gateway(tmp_path) as (url, _):
        record_gateway_state(tmp_path, 4711, "")
        expected = (
            f"the gateway at {url} (process 4711) accepts connections and has sent nothing for 0.1 s: the farm ends a "
            f"gateway that hangs within 105 s and starts it again; see {tmp_path}/log/farm.log; ask again then"
        )
        with pytest.raises(CliError) as caught, connected(config, silent_s=0.1, silence_max_s=0.0):
            pass
        assert str(caught.value) == expected
        record_gateway_state(tmp_path, 4711, "2 of 6 requests had no answer; it is ended by 12:00:00 UTC")
        with pytest.raises(CliError) as caught, connected(config, silent_s=0.1, silence_max_s=0.0):
            pass
        assert "for 0.1 s: 2 of 6 requests had no answer; it is ended by 12:00:00 UTC; see " in str(caught.value)


def test_silent_gateway_is_reported_before_any_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(state_dir=tmp_path)
    with silent_gateway(tmp_path) as (url, _):
        record_gateway_state(tmp_path, None, "its process was killed by SIGKILL")
        with connected(config, silent_s=0.1, silence_max_s=0.1):
            reported = capsys.readouterr().err
    expected = (
        f"waiting: the gateway at {url} accepts connections and has sent nothing for 0.1 s: its process was killed"
    )
    assert reported.startswith(expected)


def test_request_waits_until_silent_gateway_is_replaced(tmp_path: Path) -> None:
    """The replacement serves the same listener, and first the connections that wait there."""
    with silent_gateway(tmp_path) as (_, hung):

        def serve_after_silence() -> None:
            for _ in range(3):  # probes that end without an answer
                with hung.accept()[0] as silent:
                    while silent.recv(4096):
                        pass
            while True:
                connection, _ = hung.accept()
                with connection:
                    asked = connection.recv(4096)
                    body = b'{"runs": []}' if b"/v1/runs" in asked else b"{}"
                    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                    connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                if b"/v1/runs" in asked:
                    return

        serving = Thread(target=serve_after_silence)
        serving.start()
        with connected(Config(state_dir=tmp_path), silent_s=0.1) as client:
            assert client.runs() == ()
        serving.join()


@pytest.mark.parametrize(
    ("role", "remedy"),
    [
        ("node", "this machine was a node: join again with `farm up --join 10.0.0.1:6379 --detach`"),
        ("head", "start one with `farm up --detach`"),
    ],
)
def test_missing_farm_error_names_start_or_join_command(tmp_path: Path, role: str, remedy: str) -> None:
    for last in ("node", role):
        with locked(tmp_path):
            write_farm_info(FarmInfo(tmp_path, last, os.getpid(), "", "10.0.0.1:6379", "node", time.time()))
    with pytest.raises(CliError) as caught, connected(Config(state_dir=tmp_path)):
        pass
    assert str(caught.value) == f"no farm is up with the state directory {tmp_path}; {remedy}"


def test_farm_stopping_during_session_is_reported_down(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path)
    with kept_port() as port, ExitStack() as left:
        with locked(tmp_path):
            write_farm_info(
                FarmInfo(tmp_path, "head", os.getpid(), f"http://127.0.0.1:{port}", "", "node", time.time())
            )
            left.enter_context(pytest.raises(CliError, match="no farm is up with the state directory"))
            client = left.enter_context(connected(config, retry_s=0.0))
        client.runs()

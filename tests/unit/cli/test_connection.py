"""What a command says if the farm of this machine is up and its gateway is not."""

import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

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


def test_silent_gateway_is_reported_before_any_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config(state_dir=tmp_path)
    with locked(tmp_path), socket.create_server(("127.0.0.1", 0)) as hung:
        url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        write_farm_info(FarmInfo(tmp_path, "head", os.getpid(), url, "", "node", time.time()))
        with connected(config, silent_s=0.1):
            assert f"waiting: the gateway at {url} has sent nothing for 0.1 s; " in capsys.readouterr().err
        record_gateway_state(tmp_path, None, "its process was killed by SIGKILL")
        with connected(config, silent_s=0.1):
            assert "sent nothing for 0.1 s (its process was killed by SIGKILL); " in capsys.readouterr().err


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

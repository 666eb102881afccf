"""What a command says if the farm of this machine is up and its gateway is not."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from farm.cli.connection import connected
from farm.cli.errors import CliError
from farm.cluster import FarmInfo
from farm.cluster.state_dir import locked, write_farm_info
from farm.config import Config
from tests.support.services import kept_port


def test_a_gateway_that_does_not_answer_is_named_with_the_log_and_no_option_of_another_command(tmp_path: Path) -> None:
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


def test_a_farm_that_ends_meanwhile_is_said_to_be_down(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path)
    with kept_port() as port, ExitStack() as left:
        with locked(tmp_path):
            write_farm_info(
                FarmInfo(tmp_path, "head", os.getpid(), f"http://127.0.0.1:{port}", "", "node", time.time())
            )
            left.enter_context(pytest.raises(CliError, match="no farm is up with the state directory"))
            client = left.enter_context(connected(config, retry_s=0.0))
        client.runs()

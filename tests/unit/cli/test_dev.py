"""``farm dev model-server``: its address, and its end by a signal."""

import signal
import socket
import subprocess
import sys

import httpx

FARM = [sys.executable, "-m", "farm.cli.main", "dev", "model-server"]


def test_server_prints_its_url_and_ends_cleanly() -> None:
    command = [*FARM, "--port", "0", "--dialect", "sglang", "--version", "3", "--api-key", "secret"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.split()[4].removesuffix("/v1;")
        assert f"FARM_POLICY_KEY=KEY farm run TASKSET --policy {url}/v1" in line
        info = httpx.get(f"{url}/get_model_info", headers={"Authorization": "Bearer secret"}, trust_env=False)
        assert info.json()["weight_version"] == "3"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")


def test_taken_port_gives_one_line_with_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run([*FARM, "--port", str(port)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    reason = "Address already in use; choose another with --port, or end what listens there"
    assert done.stderr == f"error: 127.0.0.1:{port}: {reason}\n"

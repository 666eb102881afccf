"""A Docker daemon of the tests' own, for what would change the machine's: other OCI runtimes, other storage, a full
disk."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException

from tests.support.services import require_program

START_S = 60.0
NETWORK = {"iptables": False, "ip6tables": False, "ip-forward": False, "ip-masq": False}
"""The machine's network stays as it is. Told to have no bridge, it would remove docker0, which is another daemon's."""


@contextmanager
def docker_daemon(settings: Mapping[str, Any], *, disk_mib: int | None = None) -> Iterator[str]:
    """Its address. ``settings`` as daemon.json has them; ``disk_mib``: it keeps all it has in so much memory."""
    program = require_program("dockerd")
    # Below a short path: the names of its sockets hold 107 bytes.
    place = Path(tempfile.mkdtemp(prefix="farm-dockerd-", dir="/tmp"))
    data = place / "data"
    data.mkdir()
    if disk_mib is not None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "farm-dockerd", data], check=True)
    address = f"unix://{place}/sock"
    (place / "daemon.json").write_text(json.dumps({**NETWORK, **settings}))
    with open(place / "log", "wb") as log:
        process = subprocess.Popen(
            [
                program,
                *("--config-file", place / "daemon.json", "--data-root", data, "--exec-root", place / "run"),
                *("--pidfile", place / "pid", "--host", address),
            ],
            # What a runtime starts as nobody works in it, and the tests' own is open to root alone.
            env={name: value for name, value in os.environ.items() if name != "TMPDIR"},
            stdout=log,
            stderr=log,
        )
    try:
        _until_it_answers(address, process, place / "log")
        yield address
    finally:
        process.terminate()
        process.wait(START_S)
        if disk_mib is not None:
            subprocess.run(["umount", data], check=True)
        shutil.rmtree(place)


def _until_it_answers(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            docker.DockerClient(base_url=address, version="auto").close()
            return
        except DockerException:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"dockerd does not start: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)

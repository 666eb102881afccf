"""A Docker daemon of the test's own whose disk is small: a file system in memory, gone when the test ends."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import DockerException

from tests.services import missing, require_program

PATIENCE_S = 30.0
ALONE = ("--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false")
"""It leaves the network of the machine as it is."""


@dataclass(frozen=True)
class SmallDocker:
    host: str
    root: Path
    client: docker.DockerClient


@contextmanager
def small_docker(disk_mib: int) -> Iterator[SmallDocker]:
    program = require_program("dockerd")
    if os.geteuid() != 0:
        missing("root", "a daemon of its own needs it")
    home = Path(tempfile.mkdtemp(prefix="farm-docker-", dir="/tmp"))  # a socket's path holds 107 bytes
    root = home / "root"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "farm-docker", root], check=True)
    command = [program, f"--data-root={root}", f"--exec-root={home}/exec", f"--pidfile={home}/pid", *ALONE]
    with open(home / "log", "w") as log:
        daemon = subprocess.Popen([*command, f"--host=unix://{home}/sock"], stdout=log, stderr=log)
    try:
        client = _connected(f"unix://{home}/sock", daemon, home / "log")
        yield SmallDocker(f"unix://{home}/sock", root, client)
        client.close()
    finally:
        daemon.terminate()
        daemon.wait()
        subprocess.run(["umount", root], check=True)
        shutil.rmtree(home)


def _connected(host: str, daemon: subprocess.Popen[bytes], log: Path) -> docker.DockerClient:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client = docker.DockerClient(base_url=host)
            client.ping()
        except DockerException:
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd does not come up: {log.read_text()[-2000:]}") from None
            time.sleep(0.05)
        else:
            return client

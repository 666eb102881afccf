"""What only the host can do to the first process of a container: it stands for a way to do so that the inside found."""

import os
import signal
from pathlib import Path

import docker
import pytest

from sandboxes.runtimes.docker import container_name

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can reach another user's process")


def first_process(client: docker.DockerClient, sandbox_id: str) -> int:
    """The tool server's pid on the host."""
    return int(client.containers.get(container_name(sandbox_id)).attrs["State"]["Pid"])


def mute(pid: int) -> None:
    """It lives on and never answers."""
    os.kill(pid, signal.SIGSTOP)


def crash(pid: int) -> None:
    """It is woken and dies of its next step: zeros are no instruction, or a write to nowhere."""
    program_counter = int(Path(f"/proc/{pid}/syscall").read_text().split()[-1], 16)
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        memory.seek(program_counter)
        memory.write(bytes(16))
    os.kill(pid, signal.SIGCHLD)

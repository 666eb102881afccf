"""The Docker baselines: containers created and used through the Docker SDK, with the limits of a sandbox."""

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TypeVar

import docker
from docker.models.containers import Container

from sandboxes import SandboxLimits
from sandboxes.cancellation import shielded
from sandboxes.interface import MIB

LABEL = "farm.bench"
"""Label of every container of a benchmark; its value is the id of the process that created the container."""
API_TIMEOUT_S = 600

T = TypeVar("T")


class Docker:
    """The Docker daemon, called from several threads, each with its own client."""

    def __init__(self, clients: list[docker.DockerClient], threads: ThreadPoolExecutor) -> None:
        self._free = clients
        self._threads = threads

    async def run(self, work: Callable[[docker.DockerClient], T]) -> T:
        """Run ``work`` in a thread. At most as many calls run at once as there are threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def _run(self, work: Callable[[docker.DockerClient], T]) -> T:
        client = self._free.pop()
        try:
            return work(client)
        finally:
            self._free.append(client)

    @asynccontextmanager
    async def container(self, image: str, limits: SandboxLimits) -> AsyncIterator[Container]:
        stack = ExitStack()
        try:
            yield await shielded(self.run(lambda client: stack.enter_context(container(client, image, limits))))
        finally:
            await shielded(self.run(lambda _: stack.close()))


@asynccontextmanager
async def connect(docker_host: str | None, threads: int) -> AsyncIterator[Docker]:
    """Connect to the daemon with ``threads`` clients. The end waits for running calls, so that no container is left."""
    clients = [docker.DockerClient(base_url=docker_host, timeout=API_TIMEOUT_S) for _ in range(threads)]
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield Docker(list(clients), pool)
    finally:
        for client in clients:
            client.close()


@contextmanager
def container(client: docker.DockerClient, image: str, limits: SandboxLimits) -> Iterator[Container]:
    """Start an idle container and remove it at the end."""
    target = client.containers.create(
        image,
        ["sleep", "infinity"],
        network_mode="none",
        mem_limit=limits.memory_mib * MIB,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.pids,
        labels={LABEL: str(os.getpid())},
    )
    try:
        target.start()
        yield target
    finally:
        target.remove(force=True)


def exec_true(client: docker.DockerClient, target: Container) -> None:
    execute(client, target, ["sh", "-c", "true"])


def execute(client: docker.DockerClient, target: Container, argv: Sequence[str]) -> None:
    client.api.exec_start(client.api.exec_create(target.id, list(argv))["Id"])


def archive(files: Mapping[str, bytes]) -> bytes:
    """Pack plain files as a tar for ``put_archive``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()

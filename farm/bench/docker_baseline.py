"""The baselines: containers, as one makes and uses them through the Docker SDK, with the limits that a sandbox has."""

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
"""Of every container here; it says which process made it."""
API_TIMEOUT_S = 600

T = TypeVar("T")


class Docker:
    """The daemon, asked from several threads at once; each has a client of its own."""

    def __init__(self, clients: list[docker.DockerClient], threads: ThreadPoolExecutor) -> None:
        self._free = clients
        self._threads = threads

    async def run(self, work: Callable[[docker.DockerClient], T]) -> T:
        """At most as many at once as there are threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def _run(self, work: Callable[[docker.DockerClient], T]) -> T:
        client = self._free.pop()
        try:
            return work(client)
        finally:
            self._free.append(client)

    @asynccontextmanager
    async def container(self, image: str, limits: SandboxLimits) -> AsyncIterator[Container]:
        held = ExitStack()
        try:
            yield await shielded(self.run(lambda client: held.enter_context(container(client, image, limits))))
        finally:
            await shielded(self.run(lambda _: held.close()))


@asynccontextmanager
async def connect(docker_host: str | None, threads: int) -> AsyncIterator[Docker]:
    """What still runs at the end is waited for, so that no container of it is left."""
    clients = [docker.DockerClient(base_url=docker_host, timeout=API_TIMEOUT_S) for _ in range(threads)]
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield Docker(list(clients), pool)
    finally:
        for client in clients:
            client.close()


@contextmanager
def container(client: docker.DockerClient, image: str, limits: SandboxLimits) -> Iterator[Container]:
    """One that runs and does nothing."""
    made = client.containers.create(
        image,
        ["sleep", "infinity"],
        network_mode="none",
        mem_limit=limits.memory_mib * MIB,
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.pids,
        labels={LABEL: str(os.getpid())},
    )
    try:
        made.start()
        yield made
    finally:
        made.remove(force=True)


def exec_true(client: docker.DockerClient, made: Container) -> None:
    execute(client, made, ["sh", "-c", "true"])


def execute(client: docker.DockerClient, made: Container, argv: Sequence[str]) -> None:
    client.api.exec_start(client.api.exec_create(made.id, list(argv))["Id"])


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of plain files, as ``put_archive`` takes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()

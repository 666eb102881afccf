"""The limits of one image build: what others do on the same machine counts for others, and no task raises its own."""

import asyncio
import io
import os
import secrets
import tarfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker
import pytest

from farm.build_config import read_build_settings
from farm.tasks import BASE_IMAGE
from sandboxes.cgroups.cgroups import find_hierarchies
from sandboxes.errors import ImageError, RuntimeUnavailable
from sandboxes.images.confinement import BuildLimits, PackageIndexes
from sandboxes.images.store import ImageStore
from tests.support.attacks.building import Builder, dockerfile, python, unused_name

pytestmark = pytest.mark.docker

SMALL = BuildLimits(disk_mib=64)
BEYOND = 320 << 20
"""More than four times the limit of ``SMALL``."""
CPUS = 0.5


class Gate(ThreadingHTTPServer):
    """Hold the steps that call it until the test lets them go on."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reached = threading.Semaphore(0)
        self.is_open = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def indexes(self) -> PackageIndexes:
        return PackageIndexes(hosts=(self.address,))

    async def wait_for(self, steps: int) -> None:
        for _ in range(steps):
            await asyncio.to_thread(self.reached.acquire)

    def step(self) -> str:
        """Return an instruction that runs until the gate opens; ``python3`` is its program."""
        return python(
            "import socket\n"
            "way = socket.create_connection(('127.0.0.1', 3128))\n"
            f"way.sendall(b'GET http://{self.address}/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n"
            "assert b'go on' in b''.join(iter(lambda: way.recv(4096), b''))\n"
        )


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Gate)
        self.server.reached.release()
        self.server.is_open.wait()
        with suppress(OSError):  # the step was killed
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"go on")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base class's
        """Write no log."""


@pytest.fixture
def gate() -> Iterator[Gate]:
    server = Gate()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.is_open.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def name(docker_client: docker.DockerClient) -> Iterator[str]:
    with unused_name(docker_client) as found:
        yield found


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(read_build_settings(), tmp_path)


@asynccontextmanager
async def held(
    builder: Builder, gate: Gate, name: str, text: str, limits: BuildLimits, steps: int = 1
) -> AsyncIterator[asyncio.Task[None]]:
    """Yield the farm's build of ``text`` once ``steps`` of its steps wait at the gate."""
    task = asyncio.create_task(builder.farm(name, text, limits=limits, read_indexes=gate.indexes))
    reached = asyncio.create_task(gate.wait_for(steps))
    try:
        await asyncio.wait({task, reached}, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task.exception()
        yield task
    finally:
        gate.is_open.set()
        gate.reached.release(steps)
        await asyncio.wait({task, reached})


def archive(size: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        about = tarfile.TarInfo("big")
        about.size = size
        tar.addfile(about, io.BytesIO(os.urandom(1 << 20) * (size >> 20)))
    return packed.getvalue()


async def test_foreign_imports_and_commits_are_not_counted(
    name: str, builder: Builder, gate: Gate, docker_client: docker.DockerClient
) -> None:
    other = f"{name}-base"
    content = archive(BEYOND)

    def import_and_commit() -> None:
        docker_client.api.import_image_from_data(content, *other.split(":"))
        container = docker_client.containers.create(other, "/none")
        try:
            container.put_archive("/", content)
            container.commit(*other.split(":"))
        finally:
            container.remove()

    async with held(builder, gate, name, dockerfile(gate.step()), SMALL) as build:
        await asyncio.to_thread(import_and_commit)
        gate.is_open.set()
        await build


async def copy_large_file(builder: Builder, name: str) -> None:
    """Build another's image that copies more than a build of the farm may."""
    (builder.place / "big").write_bytes(os.urandom(1 << 20) * (BEYOND >> 20))
    assert await builder.naive(name, dockerfile("COPY big /big")), builder.output


async def test_copies_of_another_build_are_not_counted(name: str, builder: Builder, gate: Gate) -> None:
    async with held(builder, gate, name, dockerfile(gate.step(), "WORKDIR /mine"), SMALL) as build:
        await copy_large_file(builder, f"{name}-base")
        gate.is_open.set()
        await build


async def test_build_with_ambiguous_copies_is_not_blamed(name: str, builder: Builder, gate: Gate) -> None:
    """A stage without a step copies at the same time, so either build may have made the large layer."""
    copying = [f"FROM {BASE_IMAGE} AS copying", f"WORKDIR /{secrets.token_hex(8)}"]
    text = "\n".join([*copying, dockerfile(gate.step(), "COPY --from=copying /etc/passwd /copied")])
    async with held(builder, gate, name, text, SMALL) as build:
        await copy_large_file(builder, f"{name}-base")
        with pytest.raises(RuntimeUnavailable, match="another build"):
            await build


async def test_build_time_is_limited_by_operator(name: str, builder: Builder, gate: Gate) -> None:
    limits = BuildLimits(timeout_max_s=3)
    with pytest.raises(
        ImageError, match=r"not done after 3 s, .*build_timeout_max_s.* 120 s; raise build_timeout_max_s"
    ):
        await builder.farm(name, dockerfile(gate.step()), limits=limits, read_indexes=gate.indexes)


async def test_tasks_build_timeout_error_names_its_key(name: str, builder: Builder, gate: Gate) -> None:
    store = ImageStore(None, replace(builder.settings, read_indexes=gate.indexes))
    try:
        with pytest.raises(ImageError, match="not done after 3 s; raise build_timeout_sec"):
            await store.build(name, {"Dockerfile": dockerfile(gate.step()).encode()}, timeout_s=3)
    finally:
        await store.close()


def quotas(gate: Gate) -> list[float]:
    """Return the processors that each step at the gate may use, by the cgroups of their ``python3``."""
    found: list[float] = []
    places = find_hierarchies()
    code = gate.step().split("'")[1].encode()
    for process in Path("/proc").iterdir():
        try:
            is_step = process.name.isdigit() and (process / "comm").read_text() == "python3\n"
            is_step = is_step and code in (process / "cmdline").read_bytes()
            lines = (process / "cgroup").read_text().splitlines() if is_step else []
        except OSError:  # it ended
            continue
        for line in lines:
            _, controllers, group = line.split(":", 2)
            if places.unified and not controllers:
                quota, period = (places.mounts[""] / group.lstrip("/") / "cpu.max").read_text().split()
                found.append(float(quota) / float(period))
            elif "cpu" in controllers.split(","):
                place = places.mounts["cpu"] / group.lstrip("/")
                quota, period = ((place / f"cpu.cfs_{each}_us").read_text() for each in ("quota", "period"))
                found.append(float(quota) / float(period))
    return found


async def test_build_step_has_the_builds_cpus(name: str, builder: Builder, gate: Gate) -> None:
    async with held(builder, gate, name, dockerfile(gate.step()), BuildLimits(cpus=CPUS)) as build:
        assert quotas(gate) == [CPUS]
        gate.is_open.set()
        await build


async def test_concurrent_stages_share_the_builds_cpus(name: str, builder: Builder, gate: Gate) -> None:
    stages = [f"FROM {BASE_IMAGE} AS s{at}\n{gate.step()}" for at in range(2)]
    text = "\n".join([*stages, f"FROM {BASE_IMAGE}", *(f"COPY --from=s{at} /etc/passwd /{at}" for at in range(2)), ""])
    async with held(builder, gate, name, text, BuildLimits(cpus=CPUS), steps=2) as build:
        assert quotas(gate) == [CPUS / 2, CPUS / 2]
        gate.is_open.set()
        await build

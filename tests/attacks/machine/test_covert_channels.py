"""Signals from one sandbox to another by file locks, watches, hints and the pages of files that both can open.

The naive place is two containers with one file bound into both, as every sandbox once had its hosts file, its toolbox
and, without a daemon, /sys.
"""

import asyncio
import contextlib
import ctypes
import errno
import json
import mmap
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.models.containers import Container

from sandboxes import Sandbox, SandboxLimits, SandboxSpec
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.attacks import covert
from tests.support.attacks.measure_eviction import EVICTION, MEMORY_MIB, drop, layers_of
from tests.support.outside import EitherRuntime
from tests.support.sandboxes.conformance import WAIT_S, text, until_there
from tests.support.services import missing, needs_root

pytestmark = [pytest.mark.docker, pytest.mark.xdist_group("shares")]

BASE_IMAGE = "farm-base:1"
SCRIPT = Path(covert.__file__)
PROGRAM = SCRIPT.read_bytes()
INSIDE = "/tmp/covert.py"
SECRET_BYTES = 2
"""More locks than these take would end the sandbox that holds them."""

ROOMY = SandboxLimits(memory_mib=256, open_files=8192)
LONG_S = 4 * WAIT_S
SHARED_UNDER_DOCKER = {f"/proc/self/ns/{name}" for name in ("time", "time_for_children", "user")}
"""Docker gives a container no user and no time namespace of its own, and no filter of system calls can tell a watch on
their files from another."""


@pytest.fixture
def base_image(docker_client: docker.DockerClient) -> str:
    if not docker_client.images.list(BASE_IMAGE):
        missing(f"image {BASE_IMAGE}", "`farm images base`")
    return BASE_IMAGE


@pytest.fixture
async def pair(either_runtime: EitherRuntime, base_image: str) -> AsyncIterator[tuple[Sandbox, Sandbox]]:
    spec = SandboxSpec(base_image, limits=ROOMY)
    async with either_runtime.scope(spec) as sender, either_runtime.scope(spec) as receiver:
        for sandbox in (sender, receiver):
            await sandbox.write_file(INSIDE, PROGRAM)
        yield sender, receiver


@pytest.fixture
def naive_pair(
    docker_client: docker.DockerClient, base_image: str, tmp_path: Path
) -> Iterator[tuple[Container, Container]]:
    """Two plain containers that share one read-only file."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "hosts").write_text("127.0.0.1 localhost\n")
    with contextlib.ExitStack() as undo:
        made = []
        for _ in range(2):
            container = docker_client.containers.run(
                base_image,
                ["sleep", "1000"],
                detach=True,
                network_mode="none",
                volumes=[f"{shared}:{covert.SHARED}:ro", f"{SCRIPT}:{INSIDE}:ro"],
            )
            undo.callback(container.remove, force=True)
            made.append(container)
        yield made[0], made[1]


async def works(sandbox: Sandbox, *arguments: str) -> Any:
    """Return as a value what the script prints."""
    done = await sandbox.exec(["python3", INSIDE, *arguments], timeout_s=LONG_S, output_limit=16 << 20)
    assert done.exit_code == 0, done.stderr
    return json.loads(text(done) or "null")


@contextlib.asynccontextmanager
async def at_work(sandbox: Sandbox, *arguments: str) -> AsyncIterator["asyncio.Task[Any]"]:
    """The script has done its part within the block, and ends with it."""
    working = asyncio.create_task(works(sandbox, *arguments))
    ready = asyncio.create_task(until_there(sandbox, covert.READY))
    await asyncio.wait({working, ready}, return_when=asyncio.FIRST_COMPLETED)
    assert not working.done(), working.result()
    await ready
    yield working
    await sandbox.write_file(covert.RELEASE, b"")
    await working
    await sandbox.exec(["rm", covert.READY, covert.RELEASE], timeout_s=WAIT_S)


def works_naively(container: Container, *arguments: str) -> Any:
    code, output = container.exec_run(["python3", INSIDE, *arguments])
    assert code == 0, output
    assert isinstance(output, bytes)
    return json.loads(output)


@contextlib.contextmanager
def naively_at_work(container: Container, *arguments: str) -> Iterator[None]:
    container.exec_run(["python3", INSIDE, *arguments], detach=True)
    assert container.exec_run(["sh", "-c", f"until test -e {covert.READY}; do sleep 0.05; done"]).exit_code == 0
    yield
    container.exec_run(["touch", covert.RELEASE])


def differing(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    return {name for name in before.keys() & after.keys() if before[name] != after[name]}


async def test_locks_are_invisible_to_other_sandboxes(pair: tuple[Sandbox, Sandbox]) -> None:
    sender, receiver = pair
    free = await works(receiver, "observe")
    assert len(free) > 400
    assert {"epoll", "eventfd", "pidfd", "/etc/hosts", "/dev/null", "/.farm/bin/bash", "/proc/self/ns/time"} <= set(
        free
    )
    async with at_work(sender, "hold"):
        assert differing(free, await works(receiver, "observe")) == set()


async def test_locks_on_bound_file_are_visible(naive_pair: tuple[Container, Container]) -> None:
    sender, receiver = naive_pair
    free = works_naively(receiver, "observe")
    with naively_at_work(sender, "hold"):
        assert f"{covert.SHARED}/hosts" in differing(free, works_naively(receiver, "observe"))


async def test_secret_by_locks_crosses_to_no_sandbox(pair: tuple[Sandbox, Sandbox]) -> None:
    sender, receiver = pair
    secret = secrets.token_hex(SECRET_BYTES)
    idle_by_files, idle_by_ranges = await works(receiver, "receive", str(SECRET_BYTES))
    async with at_work(sender, "send", secret):
        by_files, by_ranges = await works(receiver, "receive", str(SECRET_BYTES))
    assert by_files == idle_by_files
    assert differing(idle_by_ranges, by_ranges) == set()
    assert set(by_ranges.values()) <= {"00" * SECRET_BYTES, "ff" * SECRET_BYTES}


async def test_secret_by_locks_crosses_a_bound_file(naive_pair: tuple[Container, Container]) -> None:
    sender, receiver = naive_pair
    secret = secrets.token_hex(SECRET_BYTES)
    with naively_at_work(sender, "send", secret):
        _, by_ranges = works_naively(receiver, "receive", str(SECRET_BYTES))
    assert by_ranges[f"{covert.SHARED}/hosts"] == secret


async def test_watches_report_nothing_of_another_sandbox(
    either_runtime: EitherRuntime, pair: tuple[Sandbox, Sandbox]
) -> None:
    sender, receiver = pair
    async with at_work(receiver, "watch") as quiet:
        pass
    async with at_work(receiver, "watch") as beside_another, at_work(sender, "hold"):
        await works(sender, "observe")
    watched, events = quiet.result()
    assert watched > 200
    told = {path for path, _ in beside_another.result()[1]} - {path for path, _ in events}
    assert told <= (SHARED_UNDER_DOCKER if either_runtime.name == "docker" else set())


async def test_watches_report_openers_of_a_bound_file(naive_pair: tuple[Container, Container]) -> None:
    sender, receiver = naive_pair
    watching = asyncio.create_task(asyncio.to_thread(works_naively, receiver, "watch"))
    await asyncio.to_thread(receiver.exec_run, ["sh", "-c", f"until test -e {covert.READY}; do sleep 0.05; done"])
    await asyncio.to_thread(works_naively, sender, "observe")
    receiver.exec_run(["touch", covert.RELEASE])
    _, events = await watching
    assert f"{covert.SHARED}/hosts" in {path for path, _ in events}


async def test_pages_of_files_are_neither_counted_nor_evicted(pair: tuple[Sandbox, Sandbox]) -> None:
    sandbox, _ = pair
    said = await works(sandbox, "pages", "/usr/bin/python3")
    for refused in ("mincore", "cachestat", "process_madvise"):
        assert said[refused] == -errno.ENOSYS, refused
    assert (said["cold"], said["pageout"]) == (-errno.EINVAL, -errno.EINVAL)
    assert (said["nowait"], said["dontcache"]) == (-errno.EOPNOTSUPP, -errno.EOPNOTSUPP)
    assert (said["plain"], said["hipri"], said["random"], said["dontneed"]) == (16, 16, 0, 0)


COOKIES = """
import json, socket
here, there = socket.socketpair()
told = {}
for name, level, option in (("cookie", 1, 57), ("namespace", 1, 71), ("type", 1, 3), ("protocol", 6, 1), ("ip", 0, 1)):
    try:
        told[name] = (socket.socket() if level != 1 else here).getsockopt(level, option)
    except OSError as error:
        told[name] = -error.errno
print(json.dumps(told))
"""


async def test_socket_numbers_are_not_readable(pair: tuple[Sandbox, Sandbox]) -> None:
    """They count up for the whole machine: eight bits crossed from one sandbox to a later one in each of 12 notes."""
    done = await pair[0].exec(["python3", "-c", COOKIES], timeout_s=WAIT_S)
    told = json.loads(text(done))
    assert (told["cookie"], told["namespace"]) == (-errno.ENOPROTOOPT, -errno.ENOPROTOOPT)
    assert min(told["type"], told["protocol"], told["ip"]) >= 0


MACHINE_FILES = "cd /proc; for file in $(find . -maxdepth 1 ! -name '[0-9]*' ! -type l ! -name .); do"


async def test_modes_of_the_machines_files_are_not_set(pair: tuple[Sandbox, Sandbox]) -> None:
    """To the mode that each has, so that a machine on which it works is none the worse."""
    # A masked file is the container's own device.
    command = f"{MACHINE_FILES} test -c $file || ! chmod $(stat -c %a $file) $file || echo $file; done; true"
    done = await pair[0].exec(["sh", "-c", command], timeout_s=WAIT_S)
    assert text(done) == ""
    assert done.stderr.head.count(b"chmod") > 20


def test_mode_set_in_container_shows_in_next(docker_client: docker.DockerClient, base_image: str) -> None:
    def run(command: str) -> str:
        output = docker_client.containers.run(base_image, ["sh", "-c", command], remove=True, network_mode="none")
        return output.decode().strip()

    try:
        run("chmod 445 /proc/version")
        assert run("stat -c %a /proc/version") == "445"
    finally:
        run("chmod 444 /proc/version")


@needs_root
async def test_sandbox_evicts_no_page_of_a_shared_file(pair: tuple[Sandbox, Sandbox], toolbox: Toolbox) -> None:
    shared = max((toolbox.path / "lib").iterdir(), key=lambda path: path.stat().st_size)
    os.sync()  # only clean pages are evicted
    read_in = pages_after_reading(shared)
    await asyncio.to_thread(run_here, "pages", str(shared))
    assert pages_in_memory(shared) < read_in
    assert pages_after_reading(shared) == read_in
    await works(pair[0], "pages", f"/.farm/lib/{shared.name}")
    assert pages_in_memory(shared) == read_in


@needs_root
async def test_memory_pressure_evicts_no_page_read_by_others(either_runtime: EitherRuntime, base_image: str) -> None:
    """Only what the attacker read itself goes. No program has a header file mapped."""
    layers = await asyncio.to_thread(layers_of, base_image)
    there = [path for path in layers[0].joinpath("usr/lib").rglob("*.h") if path.is_file()]
    file = max(there, key=lambda path: path.stat().st_size)
    inside = f"/{file.relative_to(layers[0])}"
    spec = SandboxSpec(base_image, limits=SandboxLimits(memory_mib=MEMORY_MIB))
    left = {}
    async with either_runtime.scope(spec) as attacker, either_runtime.scope(spec) as neighbour:
        for first in (attacker, neighbour):
            await asyncio.to_thread(drop, layers)
            assert pages_in_memory(file) == 0
            await first.exec(["cat", inside], timeout_s=WAIT_S)
            assert pages_in_memory(file) > 0
            await attacker.exec(EVICTION, timeout_s=LONG_S)
            left[first.id] = pages_in_memory(file)
        assert left == {attacker.id: 0, neighbour.id: -(-file.stat().st_size // mmap.PAGESIZE)}


def run_here(*arguments: str) -> None:
    subprocess.run([sys.executable, SCRIPT, *arguments], check=True, stdout=subprocess.DEVNULL)


def pages_after_reading(path: Path) -> int:
    path.read_bytes()
    return pages_in_memory(path)


def pages_in_memory(path: Path) -> int:
    """Count pages of the machine's copy by mincore(2)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    vector = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    start = ctypes.c_char.from_buffer(mapped)
    found = ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), vector)
    del start
    mapped.close()
    assert found == 0
    return sum(page & 1 for page in vector)

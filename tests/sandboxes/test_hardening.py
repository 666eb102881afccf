"""What a program inside a sandbox can and cannot do, tried from inside."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest

from sandboxes import (
    BootError,
    GoneBy,
    Limits,
    PathError,
    Runtime,
    RuntimeUnavailable,
    Sandbox,
    SandboxGone,
    SandboxSpec,
    SpecError,
)
from sandboxes.runtimes.docker import DockerRuntime, container_name
from tests.sandboxes.conformance import WAIT_S, living, text, until_there
from tests.services import missing

pytestmark = pytest.mark.docker

SMALL = Limits(memory_mib=96, pids=64, open_files=64, file_size_mib=8)
REFUSED = (errno.EPERM, errno.ENOSYS)


@pytest.fixture
async def sandbox(docker_runtime: Runtime, test_image: str) -> AsyncIterator[Sandbox]:
    async with docker_runtime.scope(SandboxSpec(test_image, limits=SMALL)) as sandbox:
        yield sandbox


async def run(sandbox: Sandbox, *argv: str) -> str:
    """Standard output of a program that must succeed."""
    result = await sandbox.exec(argv, timeout_s=WAIT_S)
    assert result.exit_code == 0, result
    return text(result)


def run_dirs(state_dir: Path) -> list[Path]:
    return [path for path in state_dir.glob("owners/*/*") if path.is_dir()]


async def works(sandbox: Sandbox, command: str) -> bool:
    return (await sandbox.exec(["sh", "-c", command], timeout_s=WAIT_S)).exit_code == 0


async def test_no_privilege_of_any_kind(sandbox: Sandbox) -> None:
    status = dict(line.split(":", 1) for line in (await run(sandbox, "cat", "/proc/self/status")).splitlines())
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


async def test_forbidden_system_calls(sandbox: Sandbox) -> None:
    tried = dict(line.split() for line in (await run(sandbox, "probe", "calls")).splitlines())
    assert len(tried) > 45
    assert {name: code for name, code in tried.items() if int(code) not in REFUSED} == {}
    assert int(tried["clone3"]) == errno.ENOSYS


async def test_no_network_but_loopback(sandbox: Sandbox) -> None:
    assert len((await run(sandbox, "cat", "/proc/net/route")).splitlines()) == 1
    assert {line.split()[-1] for line in (await run(sandbox, "cat", "/proc/net/ipv6_route")).splitlines()} <= {"lo"}
    for address in ("1.1.1.1", "169.254.169.254", "172.17.0.1", "10.0.0.1"):
        assert int(await run(sandbox, "probe", "reach", address)) == errno.ENETUNREACH
    assert int(await run(sandbox, "probe", "reach", "127.0.0.1")) == errno.ECONNREFUSED
    assert "localhost" in await run(sandbox, "cat", "/etc/hosts")
    assert await run(sandbox, "cat", "/etc/resolv.conf") == ""


async def test_nothing_of_the_host_is_in_reach(sandbox: Sandbox) -> None:
    everything = await sandbox.exec(["find", "/", "-name", "docker.sock", "-o", "-type", "b"], timeout_s=WAIT_S)
    assert text(everything) == ""
    for path in ("/proc/kcore", "/proc/kallsyms", "/proc/keys", "/proc/timer_list"):
        assert not await works(sandbox, f"test -s {path} && test -n \"$(head -c 1 {path} | tr -d '\\0')\""), path
    for path in (
        "/.farm/bin/toolserver",
        "/.farm/new",
        "/.farm-run/new",
        "/etc/hosts",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/new",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
        assert not await works(sandbox, f"echo x > {path}"), path
    assert not await works(sandbox, "mount -t tmpfs none /tmp")
    assert not await works(sandbox, "umount /.farm")


async def test_the_servers_socket_is_not_the_agents(sandbox: Sandbox) -> None:
    assert await run(sandbox, "probe", "connect", "/.farm-run/sock") == f"errno {errno.EACCES}\n"
    for command in ("rm -f {}", "mv {} /tmp/", "chmod 777 {}", "chmod 777 /.farm-run", "ln {} /tmp/sock", "echo > {}"):
        assert not await works(sandbox, command.format("/.farm-run/sock")), command
    assert await run(sandbox, "echo", "on") == "on\n"


async def test_the_server_cannot_be_killed_or_stopped_or_read(sandbox: Sandbox) -> None:
    for command in ("kill -9 1", "kill -STOP 1", "kill -TERM 1; kill -SEGV 1; kill -HUP 1; kill -USR1 1", "kill -9 -1"):
        await sandbox.exec(["sh", "-c", command], timeout_s=WAIT_S)
        assert await run(sandbox, "echo", "on") == "on\n", command
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/maps", "/proc/1/fd/*"):
        assert not await works(sandbox, f"cat {path}"), path
    for path in ("/proc/1/root/", "/proc/1/cwd/"):
        assert not await works(sandbox, f"ls {path}"), path


async def test_a_fork_bomb_is_bounded(sandbox: Sandbox) -> None:
    made = int(await run(sandbox, "probe", "forks"))
    assert made < SMALL.pids
    await sandbox.kill_all()
    assert await run(sandbox, "echo", "on") == "on\n"


async def test_a_shells_fork_bomb_ends_at_its_time_out(sandbox: Sandbox) -> None:
    bomb = await sandbox.shell("bomb() { bomb | bomb & }; bomb; sleep 1000", timeout_s=2)
    assert bomb.timed_out or bomb.shell_lost
    await sandbox.kill_all()
    assert await run(sandbox, "echo", "on") == "on\n"


async def test_a_memory_bomb_kills_itself(sandbox: Sandbox) -> None:
    bomb = await sandbox.exec(["probe", "memory", "4096"], timeout_s=WAIT_S)
    assert (bomb.exit_code, bomb.stdout.head) == (137, b"")
    shell_bomb = await sandbox.shell("probe memory 4096; echo survived $?", timeout_s=WAIT_S)
    assert b"survived 137" in shell_bomb.stdout.head
    assert await run(sandbox, "echo", "on") == "on\n"


async def test_files_and_descriptors_are_bounded(sandbox: Sandbox) -> None:
    assert int(await run(sandbox, "probe", "grow", "/tmp/big", "64")) == errno.EFBIG
    assert int(await run(sandbox, "probe", "grow", "/tmp/ok", "4")) == 0
    assert int(await run(sandbox, "probe", "files")) < SMALL.open_files
    assert await works(sandbox, "test $(ulimit -c) = 0")
    assert not await works(sandbox, "ulimit -n 100000")


async def test_a_sibling_notices_nothing(docker_runtime: Runtime, test_image: str, sandbox: Sandbox) -> None:
    async with docker_runtime.scope(SandboxSpec(test_image)) as sibling:
        bombs = [
            asyncio.create_task(sandbox.exec(["probe", "memory", "4096"], timeout_s=WAIT_S)),
            asyncio.create_task(sandbox.exec(["sh", "-c", "yes > /dev/null"], timeout_s=1)),
        ]
        for _ in range(20):
            assert await run(sibling, "echo", "on") == "on\n"
        await asyncio.gather(*bombs)


async def test_an_image_of_nothing_boots_and_has_its_tools(docker_runtime: Runtime, scratch_image: str) -> None:
    async with docker_runtime.scope(SandboxSpec(scratch_image)) as sandbox:
        result = await sandbox.shell("echo $((6 * 7)); pwd", timeout_s=WAIT_S)
        assert text(result) == "42\n/\n"
        assert await sandbox.read_file("/only") == b"this\n"
        await sandbox.write_file("/srv/new", b"1", parents=True)
        assert await run(sandbox, "/.farm/bin/bash", "-c", "echo here") == "here\n"
        assert await run(sandbox, "/.farm/bin/rg", "--no-filename", "thi", "/only") == "this\n"
        assert await run(sandbox, "/.farm/bin/busybox", "wc", "-c", "/srv/new") == "1 /srv/new\n"


@pytest.fixture
def odd_image(docker_client: docker.DockerClient, test_image: str) -> str:
    """Another user, an entry point, a health check, a volume, variables that loaders heed; removed with its base."""
    container = docker_client.containers.create(test_image, ["true"])
    conf = [
        "USER 1000",
        'ENTRYPOINT ["/bin/sh", "-c", "touch /tmp/ran"]',
        'HEALTHCHECK --interval=1s CMD ["touch", "/tmp/healthy"]',
        "VOLUME /data",
        "ENV LD_PRELOAD=/nowhere.so COLOUR=blue",
        "WORKDIR /tmp",
    ]
    image = container.commit(repository=f"{test_image.partition(':')[0]}-odd", changes=conf)
    container.remove()
    tag = f"{test_image}-odd"
    image.tag(*tag.split(":"))
    docker_client.images.remove(f"{test_image.partition(':')[0]}-odd:latest")
    return tag


async def test_what_an_image_asks_for(
    docker_runtime: Runtime, docker_client: docker.DockerClient, odd_image: str
) -> None:
    volumes = {volume.id for volume in docker_client.volumes.list()}
    try:
        async with docker_runtime.scope(SandboxSpec(odd_image)) as sandbox:
            assert sandbox.workdir == "/tmp"
            assert (await run(sandbox, "sh", "-c", "pwd; id -u; echo $COLOUR")).splitlines() == ["/tmp", "1000", "blue"]
            assert not await works(sandbox, "test -e /tmp/ran")
            assert not await works(sandbox, "touch /etc/new")
            assert await run(sandbox, "probe", "connect", "/.farm-run/sock") == f"errno {errno.EACCES}\n"
        assert {volume.id for volume in docker_client.volumes.list()} <= volumes
    finally:
        docker_client.images.remove(odd_image)


async def test_death_from_outside_is_told(
    docker_runtime: Runtime, docker_client: docker.DockerClient, sandbox: Sandbox
) -> None:
    assert (await sandbox.exec(["probe", "memory", "4096"], timeout_s=WAIT_S)).exit_code == 137
    call = asyncio.create_task(sandbox.exec(["sleep", "1000"], timeout_s=1000))
    container = docker_client.containers.get(container_name(sandbox.id))
    container.kill()
    with pytest.raises(SandboxGone, match="ended with status 137") as gone:
        await call
    assert gone.value.by is GoneBy.OUTSIDE
    container.remove(force=True)
    with pytest.raises(SandboxGone, match="removed"):
        await sandbox.read_file("/etc/motd")
    await sandbox.remove()
    assert await living(docker_runtime) == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can point the kernel at another user's process")
async def test_death_of_hunger_is_told(docker_client: docker.DockerClient, sandbox: Sandbox) -> None:
    """The kernel is made to prefer the tool server, whom it spares otherwise."""
    script = "echo > /tmp/started; until test -e /tmp/go; do sleep 0.01; done; probe memory 4096 & probe memory 4096"
    call = asyncio.create_task(sandbox.exec(["sh", "-c", script], timeout_s=WAIT_S))
    await until_there(sandbox, "/tmp/started")
    state = docker_client.containers.get(container_name(sandbox.id)).attrs["State"]
    await asyncio.to_thread(Path(f"/proc/{state['Pid']}/oom_score_adj").write_text, "1000")
    await sandbox.write_file("/tmp/go", b"")
    with pytest.raises(SandboxGone, match="ran out of memory") as gone:
        await call
    assert gone.value.by is GoneBy.MEMORY


async def test_a_boot_that_fails_says_why_and_leaves_nothing(
    docker_runtime: DockerRuntime, test_image: str, state_dir: Path
) -> None:
    with pytest.raises(SpecError, match="motd"):
        await docker_runtime.create(SandboxSpec(test_image, workdir="/etc/motd"))
    with pytest.raises(BootError, match=r"did not answer in 0\.001 s"):
        await docker_runtime.create(SandboxSpec(test_image), boot_timeout_s=0.001)
    assert await living(docker_runtime) == set()
    assert run_dirs(state_dir) == []


@pytest.mark.parametrize(
    ("docker_host", "remedy"),
    [
        ("unix:///nowhere/docker.sock", "start the daemon"),
        ("unix:///etc/passwd", "not a socket"),
        ("tcp://127.0.0.1:2375", "unix://"),
    ],
)
async def test_no_daemon_is_one_line_with_the_remedy(docker_host: str, remedy: str, state_dir: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match=remedy) as error:
        await DockerRuntime.open(state_dir=state_dir, docker_host=docker_host)
    assert "\n" not in str(error.value)


async def test_a_symlink_in_the_sandbox_does_not_lead_out(sandbox: Sandbox) -> None:
    await sandbox.write_link("/tmp/out", "/proc/1/root/etc")
    for path in ("/tmp/out/shadow", "/proc/self/root/../../etc/shadow", "../../../etc/shadow"):
        with pytest.raises(PathError):
            await sandbox.read_file(path)


BASE_IMAGE = "farm-base:1"
WORK = """
set -e
cd "$(mktemp -d)"
git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m first && git gc -q && git log --oneline
python3 - <<'END'
import asyncio, multiprocessing, socket, tempfile, threading
assert multiprocessing.get_context("fork").Pool(2).map(abs, [1, -2]) == [1, 2]
thread = threading.Thread(target=tempfile.mkstemp); thread.start(); thread.join()
async def talk():
    server = await asyncio.start_server(lambda _, writer: writer.close(), "localhost", 0)
    await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    assert await (await asyncio.create_subprocess_exec("true")).wait() == 0
asyncio.run(talk())
END
touch file && chown 0:0 file && chmod 4755 file && ln -s file link && tar cf - . | tar xf - -C "$(mktemp -d)"
"""


async def test_coding_work_is_not_hindered(docker_runtime: Runtime, docker_client: docker.DockerClient) -> None:
    if not docker_client.images.list(BASE_IMAGE):
        missing(f"image {BASE_IMAGE}", "images/base/build.sh")
    async with docker_runtime.scope(SandboxSpec(BASE_IMAGE)) as sandbox:
        result = await sandbox.shell(WORK, timeout_s=2 * WAIT_S)
        assert result.exit_code == 0, result

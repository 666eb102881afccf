"""What is the oci runtime's own: its programs, its hold on images, its ends."""

import asyncio
import contextlib
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from sandboxes import (
    BootError,
    ImageError,
    LossCause,
    OciRuntime,
    RuntimeUnavailable,
    SandboxGone,
    SandboxLimits,
    SandboxSpec,
    SpecError,
    open_runtime,
)
from sandboxes.cgroups.cgroups import Cgroups, find_hierarchies
from sandboxes.errors import DiskFull
from sandboxes.ownership.owner import Identity, group_of, owner_names
from sandboxes.runtimes.docker.runtime import DockerRuntime
from sandboxes.runtimes.oci.oci_programs import PROGRAMS
from sandboxes.runtimes.oci.starter_supervisor import MAX_FAILURES
from sandboxes.runtimes.oci.uid_ranges import FIRST_ID
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.docker_daemon import docker_daemon
from tests.support.images import Layer, busybox_image, made_image
from tests.support.machine_disk import empty_machine, fill_machine, machine_disk
from tests.support.sandboxes.conformance import DISK_SHARES, WAIT_S, degraded, living, text
from tests.support.sandboxes.serving import eventually
from tests.support.services import missing, require_program

pytestmark = pytest.mark.docker

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878
"""Of <linux/fs.h>."""
STILL_S = 60.0


@pytest.fixture(params=PROGRAMS)
async def runtime(
    request: pytest.FixtureRequest, docker_client: docker.DockerClient, toolbox: Toolbox, state_dir: Path
) -> AsyncIterator[OciRuntime]:
    try:
        runtime = await OciRuntime.open(
            state_dir=state_dir, toolbox=toolbox, programs=[request.param], disk_shares=DISK_SHARES
        )
    except RuntimeUnavailable as error:
        missing(request.param, str(error))
        raise
    yield runtime
    await runtime.close()


def first_process(state_dir: Path, sandbox_id: str) -> int:
    """As this machine numbers it, by the sandbox's control group."""
    (file,) = (
        Path("/sys/fs/cgroup").glob(f"**/farm-*/{sandbox_id}/cgroup.procs")
        if _unified()
        else Path("/sys/fs/cgroup/pids").glob(f"farm-*/{sandbox_id}/cgroup.procs")
    )
    return int(file.read_text().split()[0])


def _unified() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """What a runtime that comes up later finds in the machine's table."""
    place = tmp_path / "a disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "farm-test", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def mount_table(pid: int) -> str:
    return Path(f"/proc/{pid}/mountinfo").read_text().replace("\\040", " ")


@contextlib.asynccontextmanager
async def daemon_of_our_own(path: Path) -> AsyncIterator[str]:
    """The machine's daemon by another name, which ends with the block."""
    connections: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
        sink.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        daemon_reader, daemon_writer = await asyncio.open_unix_connection("/var/run/docker.sock")
        with contextlib.closing(daemon_writer), contextlib.closing(writer), contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(copy(reader, daemon_writer), copy(daemon_reader, writer))

    server = await asyncio.start_unix_server(forward, path)
    try:
        yield f"unix://{path}"
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        os.unlink(path)
        os.rmdir(path.parent)


async def test_each_program_runs_sandboxes_in_user_namespaces(runtime: OciRuntime, test_image: str) -> None:
    async with runtime.scope(SandboxSpec(test_image)) as sandbox:
        ids = text(await sandbox.exec(["cat", "/proc/self/uid_map"], timeout_s=WAIT_S)).split()
        assert ids[0] == "0"
        assert int(ids[1]) >= FIRST_ID
        assert text(await sandbox.exec(["id", "-u"], timeout_s=WAIT_S)) == "0\n"
        seen = text(await sandbox.exec(["cat", "/proc/self/status"], timeout_s=WAIT_S))
        assert "Seccomp:\t2\n" in seen
        refused = text(await sandbox.exec(["probe", "options"], timeout_s=WAIT_S)).splitlines()
        assert {f"{socket.SOL_SOCKET} {option}" for option in (26, 50, 51, 52)} <= set(refused)
    assert degraded(runtime) == []


async def test_full_sandbox_disk_affects_only_sandbox(oci_runtime: OciRuntime, test_image: str) -> None:
    spec = SandboxSpec(test_image, limits=SandboxLimits(disk_mib=32, file_size_mib=1024))
    async with oci_runtime.scope(spec) as full, oci_runtime.scope(spec) as other:
        written = await full.exec(["dd", "if=/dev/urandom", "of=/big", "bs=1048576", "count=200"], timeout_s=WAIT_S)
        assert written.exit_code != 0
        assert b"quota" in written.stderr.head.lower()
        assert (await full.stat("/big")).size <= 32 * 2**20
        await other.write_file("/mine", b"x" * 2**20)
        assert text(await full.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


async def test_image_in_use_cannot_be_removed(
    oci_runtime: OciRuntime, docker_client: docker.DockerClient, test_image: str
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        with pytest.raises(docker.errors.APIError, match="being used"):
            docker_client.images.remove(sandbox.image_digest)
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


async def test_cached_image_boots_without_daemon(
    docker_client: docker.DockerClient,
    docker_runtime: DockerRuntime,
    toolbox: Toolbox,
    state_dir: Path,
    test_image: str,
) -> None:
    place = tempfile.mkdtemp(prefix="farm-daemon-", dir="/tmp")  # the name of a socket holds 107 bytes
    async with daemon_of_our_own(Path(place) / "docker.sock") as docker_host:
        runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, docker_host=docker_host)
        async with runtime.scope(SandboxSpec(test_image)) as sandbox:
            digest = sandbox.image_digest
    async with runtime.scope(SandboxSpec(digest)) as sandbox:
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    with pytest.raises(RuntimeUnavailable, match="Docker does not answer"):
        await runtime.create(SandboxSpec("farm-test/other:1"))
    await runtime.close()
    labels = [f"farm.state_dir={state_dir}"]
    assert len(docker_client.containers.list(all=True, filters={"label": labels})) == 1  # it holds the image
    await docker_runtime.reap()
    assert docker_client.containers.list(all=True, filters={"label": labels}) == []


async def test_cancelled_open_leaves_no_cgroup(oci_runtime: OciRuntime, toolbox: Toolbox, state_dir: Path) -> None:
    place = state_dir / "cancelled"
    opening = asyncio.create_task(OciRuntime.open(state_dir=place, owner="one", toolbox=toolbox))
    await eventually(lambda: opening.done() or (place / "owners" / ".seal").exists())
    roots = [root / group_of(Identity.here(place, "one")) for root in find_hierarchies().needed().roots]
    await eventually(lambda: opening.done() or any(root.exists() for root in roots))
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await opening).close()
    assert not any(root.exists() for root in roots)


@pytest.mark.parametrize("cleared_away", [False, True])
async def test_outside_kill_differs_from_oom_kill(
    oci_runtime: OciRuntime, state_dir: Path, test_image: str, cleared_away: bool
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        os.kill(first_process(state_dir, sandbox.id), signal.SIGKILL)
        if cleared_away:
            (owner,) = owner_names(state_dir)
            await Cgroups(find_hierarchies(), group_of(Identity.here(state_dir, owner))).remove(sandbox.id)
        with pytest.raises(SandboxGone) as gone:
            await sandbox.exec(["true"], timeout_s=WAIT_S)
        assert gone.value.by is LossCause.OUTSIDE
    assert await living(oci_runtime) == set()


async def test_failed_start_reports_cause_and_leaves_nothing(
    oci_runtime: OciRuntime, test_image: str, tmp_path: Path
) -> None:
    refusing = tmp_path / "crun"
    refusing.write_text("#!/bin/sh\necho not today >&2; exit 3\n")
    refusing.chmod(0o755)
    oci_runtime._supervisor.program = replace(oci_runtime._supervisor.program, path=refusing, loaded_once=False)
    await kill(oci_runtime._supervisor.starter._process)  # it would go on with the program that it has
    with pytest.raises(BootError, match="did not start: not today"):
        await oci_runtime.create(SandboxSpec(test_image))
    assert await living(oci_runtime) == set()


async def test_oci_program_does_not_inherit_environment(
    state_dir: Path, toolbox: Toolbox, test_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OCI runtime that finds a NOTIFY_SOCKET waits for word that its first process is ready."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, programs=["crun"])
    try:
        async with runtime.scope(SandboxSpec(test_image)) as sandbox:
            assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        process = runtime._supervisor.starter._process.pid
        told = await asyncio.to_thread(Path(f"/proc/{process}/environ").read_bytes)
        assert b"NOTIFY_SOCKET" not in told
    finally:
        await runtime.close()


async def test_crun_is_loaded_once_but_script_is_not(
    oci_runtime: OciRuntime,
    state_dir: Path,
    toolbox: Toolbox,
    test_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crun = require_program("crun")
    assert os.readlink(f"/proc/{oci_runtime._supervisor.starter._process.pid}/exe").startswith("/memfd:crun")
    script = tmp_path / "crun"
    script.write_text(f'#!/bin/sh\nexec {crun} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scripted = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, programs=["crun"], disk_shares=DISK_SHARES)
    try:
        assert os.readlink(f"/proc/{scripted._supervisor.starter._process.pid}/exe") == str(toolbox.starter)
        (said,) = set(degraded(scripted)) - set(degraded(oci_runtime))
        assert said.startswith("crun is executed at each start")
        async with scripted.scope(SandboxSpec(test_image)) as sandbox:
            assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    finally:
        await scripted.close()


def named_by(program: str) -> tuple[str, ...]:
    """The libraries that a program names itself."""
    described = subprocess.run(["objdump", "-p", program], capture_output=True, text=True, check=True).stdout
    return tuple(line.split()[1] for line in described.splitlines() if line.split()[:1] == ["NEEDED"])


def libraries_of(pid: int) -> dict[str, bool]:
    """Those that are mapped, and whether a fork would not have them ("dc" of proc_pid_smaps(5))."""
    library, found = "", dict[str, bool]()
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.startswith("VmFlags:") and ".so" in library:
            found[library] = "dc" in line.split()
        elif not line.split()[0].endswith(":"):
            library = line.split()[-1].rpartition("/")[2]
    return found


async def test_fork_of_crun_has_only_linked_libraries(oci_runtime: OciRuntime) -> None:
    libraries = libraries_of(oci_runtime._supervisor.starter._process.pid)
    taken = ("ld-", "starter.so", *named_by(require_program("crun")))
    assert libraries == {name: not name.startswith(taken) for name in libraries}
    assert libraries["libc.so.6"] is False


@pytest.mark.parametrize("how", ["cannot be loaded", "starts nothing"])
async def test_failing_loaded_crun_is_executed_instead(
    oci_runtime: OciRuntime, test_image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    starting, spec = oci_runtime._supervisor, SandboxSpec(test_image)
    assert starting.program.loaded_once
    async with oci_runtime.scope(spec) as before:
        if how == "cannot be loaded":  # as one that was put in its place and is static
            script = tmp_path / "crun"
            script.write_text(f'#!/bin/sh\nexec {starting.program.path} "$@"\n')
            script.chmod(0o755)
            starting.program = replace(starting.program, path=script)
            await kill(starting.starter._process)
        else:
            resource.prlimit(starting.starter._process.pid, resource.RLIMIT_NOFILE, (3, 3))
            for _ in range(MAX_FAILURES):
                with pytest.raises(BootError):
                    await oci_runtime.create(spec)
        for _ in range(2):
            async with oci_runtime.scope(spec) as after:
                assert text(await after.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        await before.ping()
    assert not starting.program.loaded_once
    assert degraded(oci_runtime)[-1].startswith("crun is executed at each start")
    assert caplog.text.count("crun is executed at each start") == 1
    assert await living(oci_runtime) == set()


async def test_success_without_init_process_is_a_failure(
    oci_runtime: OciRuntime, test_image: str, tmp_path: Path
) -> None:
    starting = oci_runtime._supervisor
    silent = tmp_path / "crun"
    silent.write_text("#!/bin/sh\necho half of it died >&2\n")
    silent.chmod(0o755)
    starting.program = replace(starting.program, path=silent, loaded_once=False)
    await starting.renew()
    starting.program = replace(starting.program, loaded_once=True)
    for _ in range(MAX_FAILURES):
        assert not starting.needs_trial
        with pytest.raises(BootError, match="did not start: half of it died"):
            await oci_runtime.create(SandboxSpec(test_image))
    assert starting.needs_trial
    assert await living(oci_runtime) == set()


async def test_broken_image_keeps_crun_loaded(oci_runtime: OciRuntime, docker_client: docker.DockerClient) -> None:
    made = made_image(docker_client, [Layer().file("proc", b"no directory")])
    image = next(made)
    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(SpecError, match="did not start"):
            await oci_runtime.create(SandboxSpec(image))
    next(made, None)
    assert oci_runtime._supervisor.program.loaded_once


async def test_killed_starter_is_restarted_and_sandboxes_survive(
    oci_runtime: OciRuntime, state_dir: Path, test_image: str
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as before:
        await kill(oci_runtime._supervisor.starter._process)
        async with oci_runtime.scope(SandboxSpec(test_image)) as after:
            for sandbox in (before, after):
                assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        os.kill(first_process(state_dir, before.id), signal.SIGKILL)
        with pytest.raises(SandboxGone) as gone:
            await before.exec(["true"], timeout_s=WAIT_S)
        assert gone.value.by is LossCause.OUTSIDE
    assert await living(oci_runtime) == set()


async def test_silent_starter_is_replaced(
    oci_runtime: OciRuntime, test_image: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as before:
        os.kill(oci_runtime._supervisor.starter._process.pid, signal.SIGSTOP)
        with monkeypatch.context() as soon:
            soon.setattr("sandboxes.runtimes.oci.starter.SLOW_START_S", 0.5)
            soon.setattr("sandboxes.runtimes.oci.starter.ANSWER_S", 0.5)
            starts = [oci_runtime.create(SandboxSpec(test_image)) for _ in range(3)]
            ends = await asyncio.gather(*starts, return_exceptions=True)
        assert [type(end) for end in ends] == [RuntimeUnavailable] * 3, ends
        assert "does not answer" in caplog.text
        async with oci_runtime.scope(SandboxSpec(test_image)) as after:
            for sandbox in (before, after):
                assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    os.kill(oci_runtime._supervisor.starter._process.pid, signal.SIGSTOP)
    monkeypatch.setattr("sandboxes.runtimes.oci.starter.ANSWER_S", 0.5)
    await oci_runtime.close()


async def test_slow_start_is_awaited_while_starter_answers(
    oci_runtime: OciRuntime, test_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxes.runtimes.oci.starter.SLOW_START_S", 0.001)
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


async def test_ends_during_starter_stop_are_all_reported(oci_runtime: OciRuntime) -> None:
    starter = oci_runtime._supervisor.starter
    told: list[int | None] = []
    os.kill(starter._process.pid, signal.SIGSTOP)
    try:
        for stranger in range(1000):
            starter.request_exit_status(2**30 + stranger, told.append)
    finally:
        os.kill(starter._process.pid, signal.SIGCONT)
    assert await eventually(lambda: len(told) == 1000)
    assert not starter.gone


async def test_reused_pid_is_not_the_init_process(oci_runtime: OciRuntime, test_image: str) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        first = oci_runtime._exit_tracker._init_processes[sandbox.id]
        first.kill()
        assert await first.wait_for_status(WAIT_S)
        first.pid = os.getpid()  # as when all numbers have been given since
        with pytest.raises(SandboxGone) as gone:
            await sandbox.ping()
        assert gone.value.by is LossCause.OUTSIDE


async def kill(process: asyncio.subprocess.Process) -> None:
    """It is dead, and its end of the socket closed, when this returns."""
    process.kill()
    await process.wait()


async def test_blocked_disk_does_not_block_event_loop(oci_runtime: OciRuntime, test_image: str) -> None:
    disk = os.open(oci_runtime._files.sandbox_dir("."), os.O_RDONLY)

    rescue = f"import fcntl, time; time.sleep({STILL_S}); fcntl.ioctl({disk}, {FITHAW}, 0)"  # or nobody could
    spec = SandboxSpec(test_image)
    async with oci_runtime.scope(spec) as sandbox:
        goes = await oci_runtime.create(spec)
        late = await asyncio.create_subprocess_exec(sys.executable, "-c", rescue, pass_fds=[disk])
        fcntl.ioctl(disk, FIFREEZE, 0)
        try:
            making, removing = asyncio.create_task(oci_runtime.create(spec)), asyncio.create_task(goes.remove())
            for _ in range(200):
                await sandbox.ping()
            assert late.returncode is None
            assert not making.done()
            assert not removing.done()
        finally:
            with contextlib.suppress(ProcessLookupError):
                late.kill()
            await late.wait()
            with contextlib.suppress(OSError):  # it was too late
                fcntl.ioctl(disk, FITHAW, 0)
        await removing
        await (await making).remove()
    os.close(disk)


async def test_failed_disk_loses_sandboxes_and_is_replaced(
    docker_client: docker.DockerClient, toolbox: Toolbox, tmp_path: Path, test_image: str
) -> None:
    with machine_disk(tmp_path / "machine", 4000) as place:
        runtime = await OciRuntime.open(state_dir=place, toolbox=toolbox)
        try:
            async with runtime.scope(SandboxSpec(test_image)) as lost:
                fill_machine(place)
                with pytest.raises(SandboxGone, match="has no free space") as gone:
                    await lost.exec(["true"], timeout_s=WAIT_S)
                assert gone.value.by is LossCause.OUTSIDE
                with pytest.raises(DiskFull):
                    await runtime.create(SandboxSpec(test_image))
                empty_machine(place)
                async with runtime.scope(SandboxSpec(test_image)) as sandbox:
                    await sandbox.write_file("/file", b"x")
                    with pytest.raises(SandboxGone):
                        await lost.read_file("/etc/motd")
            assert await living(runtime) == set()
        finally:
            await runtime.close()


async def test_full_host_disk_refuses_sandboxes(docker_client: docker.DockerClient, tmp_path: Path) -> None:
    with machine_disk(tmp_path / "machine", 1000) as place:
        for kind in ("oci", "auto"):
            with pytest.raises(RuntimeUnavailable, match="sandboxes need 1024 MiB"):
                await open_runtime(kind, state_dir=place)


async def test_slow_trial_is_retried(
    docker_client: docker.DockerClient,
    toolbox: Toolbox,
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = tmp_path / "crun"
    slow.write_text(f'#!/bin/sh\nmkdir {tmp_path}/tried 2>&- && exec sleep 20\nexec {shutil.which("crun")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, disk_shares=DISK_SHARES)
    try:
        assert runtime._supervisor.program.path == slow
        (said,) = degraded(runtime)
        assert said.startswith("crun is executed at each start")  # as any script
    finally:
        await runtime.close()


async def test_removed_pin_is_renewed_unless_layers_are_gone(toolbox: Toolbox, state_dir: Path) -> None:
    """``docker system prune`` removes what holds an image, and with ``-a`` the image."""
    with docker_daemon({"storage-driver": "overlay2"}) as docker_host:
        client = docker.DockerClient(base_url=docker_host, version="auto")
        with contextlib.closing(client):
            image = next(busybox_image(client))
            runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, docker_host=docker_host)
            try:
                async with runtime.scope(SandboxSpec(image)) as sandbox:
                    client.containers.prune()
                    assert text(await sandbox.exec(["cat", "/etc/motd"], timeout_s=WAIT_S)) == "hello\n"
                    async with runtime.scope(SandboxSpec(image)):
                        client.images.prune({"dangling": False})
                        assert [kept.tags for kept in client.images.list()] == [[image]]
                    client.containers.prune()
                    client.images.prune({"dangling": False})
                    with pytest.raises(SandboxGone, match="removed layers") as gone:
                        await sandbox.exec(["cat", "/etc/motd"], timeout_s=WAIT_S)
                    assert gone.value.by is LossCause.OUTSIDE
                    with pytest.raises(ImageError):
                        await runtime.create(SandboxSpec(image))
                assert await living(runtime) == set()
            finally:
                await runtime.close()


async def test_host_mounts_can_be_unmounted(
    mounted: Path, oci_runtime: OciRuntime, state_dir: Path, test_image: str
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        for pid in (oci_runtime._supervisor.starter._process.pid, first_process(state_dir, sandbox.id)):
            assert str(mounted) not in mount_table(pid)


async def test_missing_oci_program_is_reported(toolbox: Toolbox, state_dir: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="apt-get install crun"):
        await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, programs=["no-such-program"])
    assert owner_names(state_dir) == []


async def test_auto_selects_oci_runtime(state_dir: Path, docker_client: docker.DockerClient) -> None:
    require_program("crun")
    runtime = await open_runtime("auto", state_dir=state_dir)
    try:
        assert runtime.name == "oci"
    finally:
        await runtime.close()


async def test_many_sandboxes_leave_nothing(oci_runtime: OciRuntime, test_image: str) -> None:
    spec = SandboxSpec(test_image)
    boxes = await asyncio.gather(*(oci_runtime.create(spec) for _ in range(40)))
    said = await asyncio.gather(*(box.exec(["echo", box.id], timeout_s=WAIT_S) for box in boxes))
    assert [text(result).strip() for result in said] == [box.id for box in boxes]
    await asyncio.gather(*(box.remove() for box in boxes))
    assert await living(oci_runtime) == set()


async def test_exported_layers_are_removed_with_image(toolbox: Toolbox, state_dir: Path) -> None:
    copies = state_dir / "unpacked"
    with docker_daemon({"storage-driver": "vfs"}) as docker_host:
        client = docker.DockerClient(base_url=docker_host, version="auto")
        with contextlib.closing(client):
            image = next(busybox_image(client))
            runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, docker_host=docker_host)
            try:
                digest = str(client.images.get(image).id).removeprefix("sha256:")
                half = runtime._owner.sandbox_dir(f"unpack.{digest}")
                (half / "done").mkdir(parents=True)  # by a process of this owner that was killed
                async with runtime.scope(SandboxSpec(image)) as sandbox:
                    assert not half.exists()
                    assert os.stat(copies).st_mode & 0o077 == 0
                    assert text(await sandbox.exec(["cat", "/etc/motd"], timeout_s=WAIT_S)) == "hello\n"
                    assert (await sandbox.stat("/bin/tool")).mode & 0o111
                    (copy,) = os.listdir(copies)
                    assert sandbox.image_digest == f"sha256:{copy}"
                    made = os.stat(copies / copy).st_ctime_ns
                async with runtime.scope(SandboxSpec(image)):
                    assert os.stat(copies / copy).st_ctime_ns == made
                await runtime.reap()
                assert os.listdir(copies) == [copy]
                await runtime._images.sweep(idle_s=0.0)
                client.images.remove(image, force=True)
                await runtime.reap()
                assert os.listdir(copies) == []
            finally:
                await runtime.close()

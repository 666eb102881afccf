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
from sandboxes.runtimes.oci.starter_supervisor import FAILURES
from sandboxes.runtimes.oci.uid_ranges import FIRST_ID
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.docker_daemon import docker_daemon
from tests.support.images import Layer, busybox_image, made_image
from tests.support.machine_disk import empty_machine, fill_machine, machine_disk
from tests.support.sandboxes.conformance import WAIT_S, living, text
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
        runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, programs=[request.param])
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
    assert runtime.degraded == ()


async def test_a_disk_that_is_full_is_the_sandboxes_own_trouble(oci_runtime: OciRuntime, test_image: str) -> None:
    spec = SandboxSpec(test_image, limits=SandboxLimits(disk_mib=32, file_size_mib=1024))
    async with oci_runtime.scope(spec) as full, oci_runtime.scope(spec) as other:
        written = await full.exec(["dd", "if=/dev/urandom", "of=/big", "bs=1048576", "count=200"], timeout_s=WAIT_S)
        assert written.exit_code != 0
        assert b"quota" in written.stderr.head.lower()
        assert (await full.stat("/big")).size <= 32 * 2**20
        await other.write_file("/mine", b"x" * 2**20)
        assert text(await full.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


async def test_an_image_in_use_cannot_be_taken_away(
    oci_runtime: OciRuntime, docker_client: docker.DockerClient, test_image: str
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        with pytest.raises(docker.errors.APIError, match="being used"):
            docker_client.images.remove(sandbox.image_digest)
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


async def test_once_an_image_is_known_the_daemon_may_be_away(
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


async def test_an_open_that_is_cancelled_leaves_no_group(
    oci_runtime: OciRuntime, toolbox: Toolbox, state_dir: Path
) -> None:
    place = state_dir / "cancelled"
    opening = asyncio.create_task(OciRuntime.open(state_dir=place, owner="one", toolbox=toolbox))
    await eventually(lambda: opening.done() or (place / "owners" / ".seal").exists())
    roots = [root / group_of(Identity.here(place, "one")) for root in find_hierarchies().narrowed().roots]
    await eventually(lambda: opening.done() or any(root.exists() for root in roots))
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await (await opening).close()
    assert not any(root.exists() for root in roots)


@pytest.mark.parametrize("cleared_away", [False, True])
async def test_a_kill_from_outside_is_told_from_a_death_for_memory(
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


async def test_what_does_not_start_says_why_and_leaves_nothing(
    oci_runtime: OciRuntime, test_image: str, tmp_path: Path
) -> None:
    refusing = tmp_path / "crun"
    refusing.write_text("#!/bin/sh\necho not today >&2; exit 3\n")
    refusing.chmod(0o755)
    oci_runtime._starting.program = replace(oci_runtime._starting.program, path=refusing, loaded_once=False)
    await kill(oci_runtime._starting.starter._process)  # it would go on with the program that it has
    with pytest.raises(BootError, match="did not start: not today"):
        await oci_runtime.create(SandboxSpec(test_image))
    assert await living(oci_runtime) == set()


async def test_what_this_process_was_told_is_not_told_to_the_program(
    state_dir: Path, toolbox: Toolbox, test_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An OCI runtime that finds a NOTIFY_SOCKET waits for word that its first process is ready."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, programs=["crun"])
    try:
        async with runtime.scope(SandboxSpec(test_image)) as sandbox:
            assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        process = runtime._starting.starter._process.pid
        told = await asyncio.to_thread(Path(f"/proc/{process}/environ").read_bytes)
        assert b"NOTIFY_SOCKET" not in told
    finally:
        await runtime.close()


async def test_crun_is_loaded_once_and_a_script_in_its_place_at_each_start(
    oci_runtime: OciRuntime,
    state_dir: Path,
    toolbox: Toolbox,
    test_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crun = require_program("crun")
    assert os.readlink(f"/proc/{oci_runtime._starting.starter._process.pid}/exe").startswith("/memfd:crun")
    script = tmp_path / "crun"
    script.write_text(f'#!/bin/sh\nexec {crun} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scripted = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, programs=["crun"])
    try:
        assert os.readlink(f"/proc/{scripted._starting.starter._process.pid}/exe") == str(toolbox.starter)
        (said,) = set(scripted.degraded) - set(oci_runtime.degraded)
        assert said.startswith("crun is run anew at each start")
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


async def test_a_start_takes_only_libraries_along_that_crun_names(oci_runtime: OciRuntime) -> None:
    libraries = libraries_of(oci_runtime._starting.starter._process.pid)
    taken = ("ld-", "starter.so", *named_by(require_program("crun")))
    assert libraries == {name: not name.startswith(taken) for name in libraries}
    assert libraries["libc.so.6"] is False


@pytest.mark.parametrize("how", ["cannot be loaded", "starts nothing"])
async def test_a_crun_that_is_loaded_in_vain_is_run_at_each_start(
    oci_runtime: OciRuntime, test_image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    starting, spec = oci_runtime._starting, SandboxSpec(test_image)
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
            for _ in range(FAILURES):
                with pytest.raises(BootError):
                    await oci_runtime.create(spec)
        for _ in range(2):
            async with oci_runtime.scope(spec) as after:
                assert text(await after.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        await before.ping()
    assert not starting.program.loaded_once
    assert oci_runtime.degraded[-1].startswith("crun is run anew at each start")
    assert caplog.text.count("crun is run anew at each start") == 1
    assert await living(oci_runtime) == set()


async def test_a_program_that_says_nothing_of_its_dead_half_has_started_nobody(
    oci_runtime: OciRuntime, test_image: str, tmp_path: Path
) -> None:
    starting = oci_runtime._starting
    silent = tmp_path / "crun"
    silent.write_text("#!/bin/sh\necho half of it died >&2\n")
    silent.chmod(0o755)
    starting.program = replace(starting.program, path=silent, loaded_once=False)
    await starting.renew()
    starting.program = replace(starting.program, loaded_once=True)
    for _ in range(FAILURES):
        assert not starting.doubtful
        with pytest.raises(BootError, match="did not start: half of it died"):
            await oci_runtime.create(SandboxSpec(test_image))
    assert starting.doubtful
    assert await living(oci_runtime) == set()


async def test_an_image_that_never_starts_says_nothing_of_the_program(
    oci_runtime: OciRuntime, docker_client: docker.DockerClient
) -> None:
    made = made_image(docker_client, [Layer().file("proc", b"no directory")])
    image = next(made)
    for _ in range(FAILURES + 1):
        with pytest.raises(SpecError, match="did not start"):
            await oci_runtime.create(SandboxSpec(image))
    next(made, None)
    assert oci_runtime._starting.program.loaded_once


async def test_a_starter_that_was_killed_is_started_again_and_sandboxes_outlive_it(
    oci_runtime: OciRuntime, state_dir: Path, test_image: str
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as before:
        await kill(oci_runtime._starting.starter._process)
        async with oci_runtime.scope(SandboxSpec(test_image)) as after:
            for sandbox in (before, after):
                assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        os.kill(first_process(state_dir, before.id), signal.SIGKILL)
        with pytest.raises(SandboxGone) as gone:
            await before.exec(["true"], timeout_s=WAIT_S)
        assert gone.value.by is LossCause.OUTSIDE
    assert await living(oci_runtime) == set()


async def test_a_starter_that_says_nothing_any_more_gives_way_to_another(
    oci_runtime: OciRuntime, test_image: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as before:
        os.kill(oci_runtime._starting.starter._process.pid, signal.SIGSTOP)
        with monkeypatch.context() as soon:
            soon.setattr("sandboxes.runtimes.oci.starter.LONG_S", 0.5)
            soon.setattr("sandboxes.runtimes.oci.starter.ANSWER_S", 0.5)
            starts = [oci_runtime.create(SandboxSpec(test_image)) for _ in range(3)]
            ends = await asyncio.gather(*starts, return_exceptions=True)
        assert [type(end) for end in ends] == [RuntimeUnavailable] * 3, ends
        assert "says nothing any more" in caplog.text
        async with oci_runtime.scope(SandboxSpec(test_image)) as after:
            for sandbox in (before, after):
                assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    os.kill(oci_runtime._starting.starter._process.pid, signal.SIGSTOP)
    monkeypatch.setattr("sandboxes.runtimes.oci.starter.ANSWER_S", 0.5)
    await oci_runtime.close()


async def test_a_start_that_takes_long_is_waited_for_while_the_starter_listens(
    oci_runtime: OciRuntime, test_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxes.runtimes.oci.starter.LONG_S", 0.001)
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"


async def test_those_who_end_together_while_the_starter_sleeps_are_all_told_of(oci_runtime: OciRuntime) -> None:
    starter = oci_runtime._starting.starter
    told: list[int | None] = []
    os.kill(starter._process.pid, signal.SIGSTOP)
    try:
        for stranger in range(1000):
            starter.ask_end(2**30 + stranger, told.append)
    finally:
        os.kill(starter._process.pid, signal.SIGCONT)
    assert await eventually(lambda: len(told) == 1000)
    assert not starter.gone


async def test_whoever_has_the_number_of_one_that_ended_is_not_taken_for_it(
    oci_runtime: OciRuntime, test_image: str
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        first = oci_runtime._ends._first[sandbox.id]
        first.kill()
        assert await first.until_told(WAIT_S)
        first.pid = os.getpid()  # as when all numbers have been given since
        with pytest.raises(SandboxGone) as gone:
            await sandbox.ping()
        assert gone.value.by is LossCause.OUTSIDE


async def kill(process: asyncio.subprocess.Process) -> None:
    """It is dead, and its end of the socket closed, when this returns."""
    process.kill()
    await process.wait()


async def test_while_a_disk_stands_still_all_else_goes_on(oci_runtime: OciRuntime, test_image: str) -> None:
    disk = os.open(oci_runtime._files.place("."), os.O_RDONLY)

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


async def test_when_a_disk_fails_its_sandboxes_are_lost_by_nobodys_doing_and_a_new_one_is_made(
    docker_client: docker.DockerClient, toolbox: Toolbox, tmp_path: Path, test_image: str
) -> None:
    with machine_disk(tmp_path / "machine", 4000) as place:
        runtime = await OciRuntime.open(state_dir=place, toolbox=toolbox)
        try:
            async with runtime.scope(SandboxSpec(test_image)) as lost:
                fill_machine(place)
                with pytest.raises(SandboxGone, match="no room left") as gone:
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


async def test_without_room_there_are_no_sandboxes_rather_than_some_without_limits(
    docker_client: docker.DockerClient, tmp_path: Path
) -> None:
    with machine_disk(tmp_path / "machine", 1000) as place:
        for kind in ("oci", "auto"):
            with pytest.raises(RuntimeUnavailable, match="sandboxes need 1024 MiB"):
                await open_runtime(kind, state_dir=place)


async def test_a_trial_that_took_too_long_is_tried_again(
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
    runtime = await OciRuntime.open(state_dir=state_dir, toolbox=toolbox)
    try:
        assert runtime._starting.program.path == slow
        (said,) = runtime.degraded
        assert said.startswith("crun is run anew at each start")  # as any script
    finally:
        await runtime.close()


async def test_what_holds_an_image_is_renewed_and_without_its_layers_no_answer_is_believed(
    toolbox: Toolbox, state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``docker system prune`` removes what holds an image, and with ``-a`` the image."""
    with docker_daemon({"storage-driver": "overlay2"}) as docker_host:
        client = docker.DockerClient(base_url=docker_host, version="auto")
        with contextlib.closing(client):
            image = next(busybox_image(client, tmp_path_factory))
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


async def test_the_machine_can_let_go_of_what_it_had_mounted(
    mounted: Path, oci_runtime: OciRuntime, state_dir: Path, test_image: str
) -> None:
    async with oci_runtime.scope(SandboxSpec(test_image)) as sandbox:
        for pid in (oci_runtime._starting.starter._process.pid, first_process(state_dir, sandbox.id)):
            assert str(mounted) not in mount_table(pid)


async def test_without_a_program_it_says_what_to_install(toolbox: Toolbox, state_dir: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="apt-get install crun"):
        await OciRuntime.open(state_dir=state_dir, toolbox=toolbox, programs=["no-such-program"])
    assert owner_names(state_dir) == []


async def test_auto_takes_it_where_it_works(state_dir: Path, docker_client: docker.DockerClient) -> None:
    require_program("crun")
    runtime = await open_runtime("auto", state_dir=state_dir)
    try:
        assert runtime.name == "oci"
    finally:
        await runtime.close()


async def test_many_at_once_and_all_gone(oci_runtime: OciRuntime, test_image: str) -> None:
    spec = SandboxSpec(test_image)
    boxes = await asyncio.gather(*(oci_runtime.create(spec) for _ in range(40)))
    said = await asyncio.gather(*(box.exec(["echo", box.id], timeout_s=WAIT_S) for box in boxes))
    assert [text(result).strip() for result in said] == [box.id for box in boxes]
    await asyncio.gather(*(box.remove() for box in boxes))
    assert await living(oci_runtime) == set()


async def test_layers_that_are_no_directories_are_copied_once_and_go_with_the_image(
    toolbox: Toolbox, state_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copies = state_dir / "unpacked"
    with docker_daemon({"storage-driver": "vfs"}) as docker_host:
        client = docker.DockerClient(base_url=docker_host, version="auto")
        with contextlib.closing(client):
            image = next(busybox_image(client, tmp_path_factory))
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

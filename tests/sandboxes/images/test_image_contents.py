"""What an image may hold and ask for: its user, its layers, its owners, and things that would be of power elsewhere."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import docker
import pytest

from sandboxes import PathError, Sandbox, SandboxError, SandboxSpec, SpecError
from tests.support.images import Layer, busybox_layer, made_image
from tests.support.outside import EitherRuntime
from tests.support.sandboxes.conformance import WAIT_S, refusal, text
from tests.support.services import require_program

pytestmark = pytest.mark.docker

PASSWD = b"root:x:0:0:root:/root:/bin/sh\nguest:x:1000:1001:guest:/home/guest:/bin/sh\n"
GROUP = b"root:x:0:\nguests:x:1001:\nwheel:x:10:root,guest\nextra:x:2000:guest,other\nfar:x:3000:other\n"
USERS = {
    "": "0 0 /root 0 10",
    "root": "0 0 /root 0 10",
    "guest": "1000 1001 /home/guest 10 1001 2000",
    "1000": "1000 1001 /home/guest 10 1001 2000",
    "guest:wheel": "1000 10 /home/guest 10",
    "guest:3000": "1000 3000 /home/guest 3000",
    "4711": "4711 0 / 0",
    "4711:42": "4711 42 / 42",
}
"""By what an image says: user, group, home, all groups. As the daemon has it."""
NO_USERS = (
    "nobody",
    "guest:nogroup",
    "-1",
    "guest:-1",
    "99999999999",
    "\u00b2",
    "guest:\u00b2",
    "9" * 5000,
    "huge",
    "zero",
)
ODD = b"huge:x:" + b"9" * 5000 + b":0:o:/:\nzero:x:7:7:o:/ho\0me:\n"
UNFIT: Mapping[str, Mapping[str, Any]] = {
    "variable-with-a-zero-byte": {"Env": ["A=b\0c"]},
    "variable-without-a-name": {"Env": ["=b"]},
    "variable-too-long": {"Env": ["A=" + "x" * 128 * 1024]},
    "variables-too-long": {"Env": [f"A{number}=" + "x" * 100_000 for number in range(11)]},
    "relative-directory": {"WorkingDir": "repo"},
    "directory-with-a-zero-byte": {"WorkingDir": "/re\0po"},
    "directory-too-long": {"WorkingDir": "/" + "x/" * 3000},
    "name-too-long": {"WorkingDir": "/" + "x" * 300},
    "directory-that-is-a-file": {"WorkingDir": "/etc/motd"},
    "directory-in-a-circle": {"WorkingDir": "/circle"},
}
FILE_CAPABILITIES = b"\x01\0\0\x02" + b"\xff\xff\xff\xff" * 2 + b"\xff\x01\0\0" * 2
"""Every capability, permitted, inheritable and effective, as ``vfs_cap_data`` of <linux/capability.h> has it."""

InImage = Callable[..., AbstractAsyncContextManager[Sandbox]]


@pytest.fixture(params=["docker", "oci", "oci with private layers"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def either_runtime(kind: str, request: pytest.FixtureRequest) -> EitherRuntime:
    found: EitherRuntime = request.getfixturevalue(f"{kind.split()[0]}_runtime")
    return found


@pytest.fixture
def in_image(
    kind: str,
    either_runtime: EitherRuntime,
    docker_client: docker.DockerClient,
) -> InImage:
    """A sandbox of ``layers`` on busybox, or ``bare``, on nothing; ``config`` as an image has it."""
    private = "private" in kind

    @asynccontextmanager
    async def sandbox(
        *layers: Layer, config: Mapping[str, Any] | None = None, bare: bool = False
    ) -> AsyncIterator[Sandbox]:
        ground = [] if bare else [busybox_layer()]
        image: Iterator[str] = made_image(docker_client, [*ground, *layers], config)
        name = next(image)
        try:
            async with either_runtime.scope(SandboxSpec(name, private_layers=private)) as made:
                yield made
        finally:
            await either_runtime.release_images()
            assert next(image, None) is None

    return sandbox


async def said(sandbox: Sandbox, command: str) -> str:
    result = await sandbox.exec(["sh", "-c", command], timeout_s=WAIT_S)
    assert result.exit_code == 0, result
    return text(result).strip()


def people() -> Layer:
    return Layer().file("etc/passwd", PASSWD).file("etc/group", GROUP)


@pytest.mark.parametrize("user", USERS)
async def test_image_user_is_resolved_like_docker(in_image: InImage, user: str) -> None:
    who = "echo $(id -u) $(id -g) $HOME $(sed -n 's/^Groups:\t//p' /proc/self/status)"
    async with in_image(people(), config={"User": user}) as sandbox:
        assert await said(sandbox, who) == USERS[user]
        assert text(await sandbox.shell(who, timeout_s=WAIT_S)).strip() == USERS[user]
        await sandbox.write_file("/tmp/mine", b"")
        uid, gid = USERS[user].split()[:2]
        assert (await said(sandbox, "ls -ln /tmp/mine")).split()[2:4] == [uid, gid]
        may_write = (await sandbox.exec(["sh", "-c", "echo x >> /etc/passwd"], timeout_s=WAIT_S)).exit_code == 0
        assert may_write == (uid == "0")


@pytest.mark.parametrize("user", NO_USERS)
async def test_invalid_image_user_is_spec_error(in_image: InImage, user: str) -> None:
    with pytest.raises(SpecError) as refused:
        async with in_image(Layer().file("etc/passwd", PASSWD + ODD).file("etc/group", GROUP), config={"User": user}):
            pass
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("asked", UNFIT)
async def test_impossible_image_config_is_spec_error(in_image: InImage, asked: str) -> None:
    with pytest.raises(SpecError) as refused:
        async with in_image(Layer().symlink("circle", "/circle"), config=UNFIT[asked]):
            pass
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("place", [".farm", "etc/hosts"])
async def test_mount_point_of_wrong_kind_is_spec_error(
    in_image: InImage, either_runtime: EitherRuntime, place: str
) -> None:
    """Under oci the farm's own layer lies above an image's ``/.farm``."""
    covered = place == ".farm" and either_runtime.name == "oci"
    with contextlib.nullcontext() if covered else pytest.raises(SpecError, match="the image's own files"):
        async with in_image(Layer().directory(place) if place == "etc/hosts" else Layer().file(place)) as sandbox:
            assert (await said(sandbox, "ls /.farm/bin")).split()


async def test_image_files_do_not_appear_in_toolbox(in_image: InImage) -> None:
    own = Layer().directory(".farm").directory(".farm/bin").file(".farm/bin/bash").file(".farm/own").file(".farm/hosts")
    async with in_image(own) as sandbox:
        assert "own" not in (await said(sandbox, "ls -A /.farm")).split()
        assert "localhost" in await said(sandbox, "cat /etc/hosts")
        assert text(await sandbox.shell("echo on", timeout_s=WAIT_S)) == "on\n"


async def test_user_id_beyond_oci_range_is_refused(in_image: InImage, either_runtime: EitherRuntime) -> None:
    refused = pytest.raises(SpecError, match="runtime = docker")
    with refused if either_runtime.name == "oci" else contextlib.nullcontext():
        async with in_image(config={"User": "70000"}) as sandbox:
            assert await said(sandbox, "id -u") == "70000"


async def test_files_of_unmapped_users_keep_their_permissions(in_image: InImage, either_runtime: EitherRuntime) -> None:
    """Where users are mapped, those beyond the 65,536 of a sandbox are nobody inside; whoever may read may read on."""
    far = Layer().file("srv/near", b"near", owner=65_535).directory("srv/closed", mode=0o700, owner=2_000_000_000)
    far.file("srv/far", b"far", owner=2_000_000_000).file("srv/mine", b"mine", mode=0o600, owner=2_000_000_000)
    async with in_image(far) as sandbox:
        owners = (await said(sandbox, "cd /srv; ls -ln near far | sed 's/ \\+/ /g' | cut -d ' ' -f 3")).split()
        assert owners == (["65534", "65535"] if either_runtime.name == "oci" else ["2000000000", "65535"])
        assert await sandbox.read_file("/srv/far") == b"far"
        assert await refusal(sandbox.read_file("/srv/mine")) == errno.EACCES
        for command in ("chown 0 /srv/far", "echo x > /srv/far", "rmdir /srv/closed && mkdir /srv/closed/x"):
            assert (await sandbox.exec(["sh", "-c", command], timeout_s=WAIT_S)).exit_code != 0, command
        assert {entry.path for entry in await sandbox.walk("/srv", prune=["closed"])} == {"near", "far", "mine"}


async def test_files_deleted_by_upper_layer_are_absent(in_image: InImage) -> None:
    lower = Layer().directory("d").file("d/old", b"old").file("d/kept", b"kept").directory("o").file("o/hidden", b"x")
    lower.directory("turned").file("turned/inside").file("gone").hard_link("d/twin", "d/kept")
    upper = Layer().whiteout("d/old").whiteout("gone").opaque("o").file("o/shown", b"shown")
    upper.whiteout("turned").file("turned", b"a file now")
    async with in_image(lower, upper) as sandbox:
        assert [entry.path for entry in await sandbox.walk("/d")] == ["kept", "twin"]
        assert [entry.path for entry in await sandbox.walk("/o")] == ["shown"]
        assert await sandbox.read_file("/turned") == b"a file now"
        assert await refusal(sandbox.stat("/gone")) == errno.ENOENT
        await sandbox.write_file("/d/old", b"new")
        await sandbox.remove_path("/d/kept")
        assert [entry.path for entry in await sandbox.walk("/d")] == ["old", "twin"]
        assert await sandbox.read_file("/d/twin") == b"kept"


async def test_setuid_and_file_capabilities_have_no_effect(in_image: InImage) -> None:
    """Neither the set-user-ID bit nor capabilities of files make a program more than who started it."""
    busybox = await asyncio.to_thread(Path(require_program("busybox")).read_bytes)
    powers = people().file("etc/shadow", b"secret", mode=0o600).directory("set").directory("cap")
    powers.file("set/busybox", busybox, mode=0o6755)
    powers.file("cap/busybox", busybox, mode=0o755, xattrs={"security.capability": FILE_CAPABILITIES})
    async with in_image(powers, config={"User": "guest"}) as sandbox:
        for program in ("/set/busybox", "/cap/busybox"):
            shown = await sandbox.exec([program, "cat", "/proc/self/status"], timeout_s=WAIT_S)
            if shown.exit_code != 126:  # the kernel may refuse to run it at all
                seen = dict(line.split(":", 1) for line in text(shown).splitlines())
                assert set(seen["Uid"].split()) == {"1000"}, program
                assert set(seen["Gid"].split()) == {"1001"}, program
                assert {int(seen[kind], 16) for kind in ("CapPrm", "CapEff", "CapAmb")} == {0}, program
            read = await sandbox.exec([program, "cat", "/etc/shadow"], timeout_s=WAIT_S)
            assert (read.exit_code != 0, read.stdout.head) == (True, b""), program


async def test_etc_symlink_resolves_inside_image(in_image: InImage, either_runtime: EitherRuntime) -> None:
    """It leads nowhere but inside. Docker puts a directory of its own in its place."""
    layer = Layer().symlink("etc", "/other").directory("other").file("other/motd", b"other\n")
    async with in_image(layer, bare=True) as sandbox:
        assert b"localhost" in await sandbox.read_file("/etc/hosts")
        if either_runtime.name == "oci":
            assert await sandbox.read_file("/etc/motd") == b"other\n"


@pytest.mark.parametrize("target", ["/proc/1/root/etc", "../../../../../../../../var/lib", "/nowhere/at/all", "/etc"])
async def test_etc_symlink_to_host_leaves_host_unchanged(in_image: InImage, target: str) -> None:
    """It boots on what is inside, or does not boot; the machine's own file of names stays as it was."""
    hosts = Path("/etc/hosts")
    before = await asyncio.to_thread(hosts.read_bytes)
    with contextlib.suppress(SandboxError):
        async with in_image(Layer().symlink("etc", target).file("only"), bare=True) as sandbox:
            with pytest.raises(PathError):
                await sandbox.read_file("/etc/shadow")
    assert await asyncio.to_thread(hosts.read_bytes) == before


async def test_image_without_system_directories_boots(in_image: InImage) -> None:
    """None of those that a system has: they are made where it needs them."""
    async with in_image(Layer().file("only", b"this\n"), bare=True) as sandbox:
        listed = await sandbox.exec(["/.farm/bin/busybox", "ls", "/"], timeout_s=WAIT_S)
        assert {"dev", "etc", "only", "proc", "sys"} <= set(text(listed).split())
        assert text(await sandbox.shell("echo $((6 * 7)); pwd; : < /dev/null", timeout_s=WAIT_S)) == "42\n/\n"
        assert await sandbox.read_file("/only") == b"this\n"
        await sandbox.write_file("/srv/new", b"1", parents=True)
        for argv, out in (
            (["bash", "-c", "echo here"], "here\n"),
            (["rg", "--no-filename", "thi", "/only"], "this\n"),
            (["busybox", "wc", "-c", "/srv/new"], "1 /srv/new\n"),
        ):
            found = await sandbox.exec([f"/.farm/bin/{argv[0]}", *argv[1:]], timeout_s=WAIT_S)
            assert (found.exit_code, text(found)) == (0, out)


@pytest.mark.parametrize("place", ["proc", "sys", "dev", "dev/shm", ".farm", "etc/hosts"])
async def test_link_or_file_as_mount_point_stays_inside(in_image: InImage, place: str) -> None:
    """What is mounted in a sandbox is mounted inside, or the sandbox does not come up."""
    elsewhere = "/tmp/farm-elsewhere"
    for layer in (Layer().symlink(place, elsewhere), Layer().file(place, b"x")):
        with contextlib.suppress(SandboxError):
            async with in_image(layer, bare=True) as sandbox:
                assert (await sandbox.exec(["/.farm/bin/busybox", "true"], timeout_s=WAIT_S)).exit_code == 0
    assert not await asyncio.to_thread(os.path.lexists, elsewhere)


def left_volumes(client: docker.DockerClient, before: set[str | None]) -> set[str | None]:
    """Return the volumes since ``before``, except the toolboxes of Docker sandboxes, which other tests may start."""
    new = {volume.id for volume in client.volumes.list()} - before
    toolboxes = {
        mount["Name"]
        for container in client.api.containers(all=True)
        for mount in container["Mounts"]
        if mount["Type"] == "volume" and mount["Destination"] == "/.farm"
    }
    return new - toolboxes


@pytest.mark.xdist_group("volumes")
async def test_image_config_is_only_partly_applied(in_image: InImage, docker_client: docker.DockerClient) -> None:
    """Variables and a directory it gets; a volume, a health check, an entry point it does not."""
    volumes = {volume.id for volume in docker_client.volumes.list()}
    config = {
        "User": "1000",
        "Entrypoint": ["/bin/sh", "-c", "touch /tmp/ran"],
        "Cmd": ["touch", "/tmp/ran"],
        "Healthcheck": {"Test": ["CMD", "touch", "/tmp/ran"], "Interval": 1_000_000_000},
        "Volumes": {"/data": {}},
        "Env": ["LD_PRELOAD=/nowhere.so", "COLOUR=blue"],
        "WorkingDir": "/tmp",
        "StopSignal": "SIGUSR1",
    }
    async with in_image(config=config) as sandbox:
        assert sandbox.workdir == "/tmp"
        assert (await said(sandbox, "pwd; id -u; echo $COLOUR")).splitlines() == ["/tmp", "1000", "blue"]
        assert await refusal(sandbox.stat("/tmp/ran")) == errno.ENOENT
        assert (await sandbox.exec(["sh", "-c", "touch /etc/new"], timeout_s=WAIT_S)).exit_code != 0
    while left_volumes(docker_client, volumes):
        pass  # another test's sandbox is being removed; a volume that stays is a leak, and the test does not end

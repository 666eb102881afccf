"""What programs in a real sandbox reach through its proxy, when it is shut, and what is left of it."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes import (
    DockerRuntime,
    OciRuntime,
    Runtime,
    RuntimeUnavailable,
    Sandbox,
    SandboxGone,
    SandboxSpec,
    SpecError,
)
from sandboxes.egress import EgressDecision, Grants, listen_inside
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.sandboxes.conformance import WAIT_S, living, text
from tests.support.sandboxes.origin import BODY, Origin, origin
from tests.support.sandboxes.proxying import HOST
from tests.support.sandboxes.serving import eventually
from tests.support.services import needs_root

pytestmark = [pytest.mark.docker, needs_root]


@pytest.fixture
async def far() -> AsyncIterator[Origin]:
    async with origin() as server:
        yield server


@pytest.fixture(params=["docker", "oci"])
def runtime(request: pytest.FixtureRequest, far: Origin) -> DockerRuntime | OciRuntime:
    """Its operator grants the origin, which is on loopback."""
    found: DockerRuntime | OciRuntime = request.getfixturevalue(f"{request.param}_runtime")
    found.granted = Grants.parse((f"{HOST}:{far.port}",))
    return found


@pytest.fixture
async def sandbox(runtime: Runtime, test_image: str, far: Origin) -> AsyncIterator[Sandbox]:
    """It may reach the origin, and whatever ``localhost`` is at the default ports."""
    spec = SandboxSpec(test_image, egress=(f"{HOST}:{far.port}", "localhost"))
    async with runtime.scope(spec) as sandbox:
        yield sandbox


async def fetch(sandbox: Sandbox, url: str) -> tuple[int | None, str]:
    """As a program does that was told of the proxy, and not to spare this machine's own names."""
    result = await sandbox.exec(["sh", "-c", f"no_proxy= wget -q -O - {url} 2>&1"], timeout_s=WAIT_S)
    return result.exit_code, text(result)


async def visits_so_far(far: Origin) -> int:
    """Those that were on their way too, and one more: connections are taken in the order in which they came."""
    reader, writer = await asyncio.open_connection(HOST, far.port)
    writer.write(b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), WAIT_S)).endswith(BODY)
    writer.close()
    return len(far.visits)


def doors() -> list[str]:
    """Return the descriptors of this process that are sockets or networks, and the threads of its proxies."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # that of the listing itself
            continue
    return [link for link in links if "socket:" in link or "net:" in link] + [
        thread.name for thread in threading.enumerate() if thread.name.startswith("egress")
    ]


async def test_only_listed_host_is_reached(sandbox: Sandbox, far: Origin) -> None:
    assert await fetch(sandbox, f"http://{HOST}:{far.port}/a") == (0, BODY.decode())
    async with origin() as other:
        for refused in (f"http://{HOST}:{other.port}/", "http://localhost/", "http://169.254.169.254/latest/"):
            code, said = await fetch(sandbox, refused)
            assert (code, "403 Forbidden" in said) == (1, True), said
        assert other.visits == []
    assert len(far.visits) == 1
    await eventually(lambda: len(sandbox.egress_log.records) == 4)
    assert [sandbox.egress_log.count(verdict) for verdict in EgressDecision] == [1, 3, 0]
    assert {record.sandbox_id for record in sandbox.egress_log.records} == {sandbox.id}


async def test_network_is_reached_only_through_proxy(sandbox: Sandbox, far: Origin) -> None:
    assert len(text(await sandbox.exec(["cat", "/proc/net/route"], timeout_s=WAIT_S)).splitlines()) == 1
    direct = await sandbox.exec(["wget", "-q", "-Y", "off", "-O", "-", f"http://{HOST}:{far.port}/"], timeout_s=WAIT_S)
    assert direct.exit_code == 1
    assert far.visits == []
    assert text(await sandbox.exec(["cat", "/etc/resolv.conf"], timeout_s=WAIT_S)) == ""


async def test_sandbox_cannot_take_the_proxy_port(sandbox: Sandbox, far: Origin) -> None:
    listening = await sandbox.exec(["sh", "-c", "nc -l -p 3128 2>&1; kill -9 -1"], timeout_s=WAIT_S)
    assert "in use" in text(listening)
    await sandbox.kill_all()
    assert await fetch(sandbox, f"http://{HOST}:{far.port}/a") == (0, BODY.decode())


async def test_sandbox_without_allow_list_has_no_proxy(runtime: Runtime, test_image: str) -> None:
    async with runtime.scope(SandboxSpec(test_image)) as sandbox:
        assert "proxy" not in text(await sandbox.exec(["env"], timeout_s=WAIT_S)).lower()
        assert (await fetch(sandbox, "http://127.0.0.1:3128/"))[0] == 1
        assert "0C38" not in text(await sandbox.exec(["cat", "/proc/net/tcp"], timeout_s=WAIT_S))
        await sandbox.shut_egress()
        assert sandbox.egress_log.records == ()


async def test_proxy_variables_are_set_unless_spec_sets_them(runtime: Runtime, test_image: str) -> None:
    spec = SandboxSpec(test_image, env={"NO_PROXY": "mine"}, egress=("pypi.org",))
    async with runtime.scope(spec) as sandbox:
        told = text(await sandbox.exec(["env"], timeout_s=WAIT_S)).splitlines()
    url = "http://127.0.0.1:3128"
    wanted = {f"{name}={url}" for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")}
    assert wanted | {"NO_PROXY=mine", "no_proxy=localhost,127.0.0.1,::1"} <= set(told)


async def test_shut_egress_passes_nothing(sandbox: Sandbox, far: Origin) -> None:
    busy = f"no_proxy=; while :; do wget -q -O /tmp/got http://{HOST}:{far.port}/; done 2>/dev/null"
    running = asyncio.create_task(sandbox.exec(["sh", "-c", busy], timeout_s=WAIT_S))
    await eventually(lambda: len(far.visits) > 2)
    await sandbox.shut_egress()
    seen = await visits_so_far(far)
    for _ in range(5):
        code, said = await fetch(sandbox, f"http://{HOST}:{far.port}/a")
        assert (code, "refused" in said) == (1, True), said
    assert len(far.visits) == seen
    await sandbox.shut_egress()
    await sandbox.kill_all()
    await running


async def test_removed_sandbox_leaves_no_sockets_or_threads(runtime: Runtime, test_image: str, far: Origin) -> None:
    spec = SandboxSpec(test_image, egress=(f"{HOST}:{far.port}", "localhost"))
    async with runtime.scope(SandboxSpec(test_image)):
        pass  # what a runtime keeps for all its sandboxes is there
    before = sorted(doors())
    async with runtime.scope(spec) as sandbox:
        assert (await fetch(sandbox, f"http://{HOST}:{far.port}/a"))[0] == 0
        assert (await fetch(sandbox, "http://localhost/"))[0] == 1
        assert sorted(doors()) != before
        hanging = asyncio.create_task(sandbox.exec(["sh", "-c", "nc 127.0.0.1 3128"], timeout_s=WAIT_S))
        await sandbox.stat("/")
    with contextlib.suppress(SandboxGone):  # unless it saw the door close, and ended before its sandbox did
        await hanging
    await eventually(lambda: len(doors()) <= len(before))


async def test_closed_runtime_stops_every_proxy(
    runtime: DockerRuntime | OciRuntime, toolbox: Toolbox, test_image: str, tmp_path: Path, far: Origin
) -> None:
    before = sorted(doors())
    other = await type(runtime).open(state_dir=tmp_path, toolbox=toolbox)
    other.granted = runtime.granted
    sandbox = await other.create(SandboxSpec(test_image, egress=(f"{HOST}:{far.port}",)))
    assert (await fetch(sandbox, f"http://{HOST}:{far.port}/"))[0] == 0
    await other.close()
    await eventually(lambda: len(doors()) <= len(before))


async def test_cancelled_fork_with_shut_egress_leaves_nothing(
    runtime: DockerRuntime | OciRuntime, sandbox: Sandbox
) -> None:
    await sandbox.shut_egress()
    forking = asyncio.create_task(sandbox.fork())
    while not runtime._proxies:  # noqa: ASYNC110 - the moment is the fork's own
        await asyncio.sleep(0)
    (fork,) = runtime._proxies
    while not runtime._owner.sandbox_dir(f"{fork}.record").exists():  # noqa: ASYNC110 - so is this one
        await asyncio.sleep(0)
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert await living(runtime) == {sandbox.id}


async def test_only_the_sandbox_reaches_its_listening_socket(runtime: Runtime, test_image: str) -> None:
    async with runtime.scope(SandboxSpec(test_image)) as one, runtime.scope(SandboxSpec(test_image)) as other:
        with await one.listen(4000) as listener:
            asking = asyncio.create_task(one.exec(["nc", "127.0.0.1", "4000"], timeout_s=WAIT_S))
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            with client:
                await asyncio.get_running_loop().sock_sendall(client, b"from outside")
            assert text(await asking) == "from outside"
            refused = await other.exec(["nc", "127.0.0.1", "4000"], timeout_s=WAIT_S)
            assert refused.exit_code == 1
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", 4000)
        closed = await one.exec(["nc", "127.0.0.1", "4000"], timeout_s=WAIT_S)
        assert closed.exit_code == 1


async def test_invalid_allow_list_boots_nothing(runtime: Runtime, test_image: str) -> None:
    with pytest.raises(SpecError, match="too wide"):
        await runtime.create(SandboxSpec(test_image, egress=("*.org",)))
    assert await living(runtime) == set()


async def test_proxy_listens_only_in_living_sandbox_network() -> None:
    async def alive() -> None:
        return None

    async def dead() -> None:
        raise SandboxGone("it has ended")

    before = [door for door in doors() if "net:" in door]
    with pytest.raises(RuntimeUnavailable, match="is this machine's"):
        await listen_inside(os.getpid(), alive)
    with pytest.raises(SandboxGone):
        await listen_inside(os.getpid(), dead)
    with pytest.raises(RuntimeUnavailable, match="No such file"):
        await listen_inside(2**22 + 1, alive)
    assert [door for door in doors() if "net:" in door] == before

"""Out: by packets of one's own making, to the cloud's metadata, to a name server, to what the machine has listening."""

import asyncio
import errno
import socket

from tests.attacks.machine.conftest import ANSWER_S, Scene
from tests.support.sandboxes.conformance import text

ADDRESSES = (
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "172.17.0.1",
    "192.168.0.1",
    "8.8.8.8",
    "127.0.0.11",
)


async def test_no_address_is_reached(after_an_attack: Scene) -> None:
    for address in ADDRESSES:
        reached = int(text(await after_an_attack.attacker.exec(["probe", "reach", address], timeout_s=ANSWER_S)))
        assert reached in (errno.ENETUNREACH, errno.ECONNREFUSED), address  # refused by its own loopback


async def test_no_name_is_resolved(after_an_attack: Scene) -> None:
    for name in ("metadata.google.internal", "example.com", "host.docker.internal", "gateway.docker.internal"):
        asked = await after_an_attack.attack(f"wget -q -T 5 -O - http://{name}/", timeout_s=20)
        assert asked.exit_code != 0, name
        assert asked.stdout.head == b"", name


async def test_services_of_the_machine_are_unreachable(after_an_attack: Scene) -> None:
    """Neither at its loopback, nor by an abstract name, nor by a path."""
    called = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0{after_an_attack.attacker.id}")
    abstract.listen()
    async with server:
        port = server.sockets[0].getsockname()[1]
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            await after_an_attack.attack(f"echo x | nc -w 1 {host} {port}", timeout_s=10)
        at = await after_an_attack.attacker.exec(["probe", "abstract", after_an_attack.attacker.id], timeout_s=ANSWER_S)
    abstract.close()
    assert not called.is_set()
    assert text(at) == f"errno {errno.ECONNREFUSED}\n"
    for path in ("/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private"):
        assert (await after_an_attack.attack(f"test -e {path}")).exit_code == 1


async def test_sandboxes_cannot_connect_to_each_other(after_an_attack: Scene) -> None:
    listening = "nc -l -p 4445 -e cat & until grep -q ':115D .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done"
    assert (await after_an_attack.sibling.exec(["sh", "-c", listening], timeout_s=ANSWER_S)).exit_code == 0
    for address in ("127.0.0.1", "127.0.0.2"):
        heard = await after_an_attack.attack(f"echo x | nc -w 1 {address} 4445", timeout_s=10)
        assert (heard.exit_code, heard.stdout.head) == (1, b"")

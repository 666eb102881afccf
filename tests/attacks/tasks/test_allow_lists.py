"""Tasks whose allow-list names the node itself: its gateway, its queue, its cloud, its neighbours."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from farm.config import ConfigError, load_config
from farm.tasks.errors import TaskError
from farm.tasks.schema.manifest import parse_manifest
from sandboxes import SpecError
from sandboxes.egress import EgressDecision, Grants
from tests.support.sandboxes.conformance import WAIT_S
from tests.support.sandboxes.lone_network import FAR, HERE, in_lone_network
from tests.support.sandboxes.origin import BODY, origin
from tests.support.sandboxes.proxying import get, proxying, status
from tests.support.services import needs_root

OTHER_OWN = "11.0.0.9"
"""A second address of the node, to which the kernel connects from the first one."""
LAN = "10.0.0.7"

PLAIN = [
    "127.0.0.1:8710", "127.0.0.2:80", "127.255.255.254:1", "0.0.0.0:8710", "0.1.2.3:80", "[::1]:8710", "[::]:8710",
    "[::ffff:127.0.0.1]:8710", "[::ffff:7f00:1]:8710", "[::127.0.0.1]:80", "[64:ff9b::7f00:1]:80",
    "[2002:7f00:1::]:8710", "[2001:0:7f00:1::1]:80", "169.254.169.254:80", "[fe80::1]:80", "[fd00:ec2::254]:80",
    "224.0.0.1:80", "255.255.255.255:80", "[ff02::1]:80", "100.100.100.200:80", "168.63.129.16:80",
    "127.1:8710", "127.0.1:8710", "2130706433:8710", "0x7f000001:8710", "0x7f.0.0.1:80", "017700000001:8710",
    "0177.0.0.1:80", "127.0.0.1.:8710", "localhost:8710", "LOCALHOST:8710", "localhost.:8710", "a.localhost:80",
    "*.a.localhost:80", "localhost.localdomain:80", "ip6-localhost:80", "localhost", "127.0.0.1", "[::1]",
    f"{socket.gethostname()}:8710", f"{socket.gethostname().upper()}.:8710", "10.0.0.7",
    "127.0.0.1@pypi.org:80", "\u2460\u2461\u2466.0.0.1:80", "127\u30020\u30020\u30021:80", "[::1%lo]:80",
]  # a table, read across  # fmt: skip


def task(network: str) -> Callable[[], object]:
    text = f'[metadata.farm]\nnetwork = ["pypi.org", "{network}"]\n'
    return lambda: parse_manifest(Path("task.toml"), text.encode())


@pytest.mark.parametrize("pattern", PLAIN)
def test_task_naming_own_machine_is_not_loaded(pattern: str) -> None:
    with pytest.raises(TaskError, match=r"metadata\.farm\.network"):
        task(pattern)()


@pytest.mark.parametrize("pattern", ["pypi.org", "*.pythonhosted.org", "mirror.lan:3141", "10.0.0.7:3141", "1.1.1.1"])
def test_task_naming_other_hosts_is_loaded(pattern: str) -> None:
    task(pattern)()


def alone(scratch: Path, scenario: Coroutine[Any, Any, None], **names: str) -> None:
    async def prepared() -> None:
        for command in (
            f"ip address add {OTHER_OWN}/32 dev lo",
            f"ip route replace local {OTHER_OWN} dev lo table local src {HERE}",
            f"ip route replace local {LAN} dev lo table local src {HERE}",
            "ip -6 address add 2606:4700::7/128 dev lo",
        ):
            process = await asyncio.create_subprocess_exec(*command.split())
            assert await process.wait() == 0, command
        await scenario

    in_lone_network(prepared, {f"{name}.example": address for name, address in names.items()}, scratch)


async def naive(host: str, port: int) -> bytes:
    """Ask as a proxy does that connects to any host of the allow-list."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(get(f"http://{host}/").encode())
    try:
        return await asyncio.wait_for(reader.read(), WAIT_S)
    finally:
        writer.close()


@needs_root
@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", HERE, OTHER_OWN, "0.0.0.0", LAN, "::1", "2606:4700::7"])
@pytest.mark.parametrize("named", [True, False], ids=["by a name", "as an address"])
def test_node_is_unreachable_at_every_address(tmp_path: Path, address: str, named: bool) -> None:
    """Also one that was loaded elsewhere, whose name moved, or that was put into a bundle by hand."""
    host = "near.example" if named else f"[{address}]" if ":" in address else address

    async def scenario() -> None:
        wild = "::" if ":" in address else "0.0.0.0"
        async with origin(wild, 8710) as gateway, proxying(f"{host}:8710", granted=()) as client:
            assert (await naive(host.strip("[]"), 8710)).endswith(BODY), "the naive proxy connects"
            gateway.visits.clear()
            plain = await client.ask(get(f"http://{host}:8710/v1/runs"))
            tunnel = await client.ask(f"CONNECT {host}:8710 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (status(plain), status(tunnel), gateway.visits) == (403, 403, [])
            assert {record.verdict for record in await client.records(2)} == {EgressDecision.REFUSED}

    alone(tmp_path, scenario(), near=address)


@needs_root
def test_address_added_to_node_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with origin(FAR[0], 8710) as far, proxying(f"{FAR[0]}:8710", granted=()) as client:
            assert (await client.ask(get(f"http://{FAR[0]}:8710/"))).endswith(BODY)
            process = await asyncio.create_subprocess_exec(*f"ip address add {FAR[0]}/32 dev lo".split())
            assert await process.wait() == 0
            assert status(await client.ask(get(f"http://{FAR[0]}:8710/"))) == 403
            assert len(far.visits) == 1

    alone(tmp_path, scenario())


@needs_root
def test_operators_grant_covers_one_port_of_host(tmp_path: Path) -> None:
    async def scenario() -> None:
        granted = ("mirror.example:3141", f"{LAN}:80")
        task = ("mirror.example:3141", "mirror.example:8710", "lan.example:80", f"{LAN}:81", "other.example:3141")
        async with (
            origin("127.0.0.1", 3141) as mirror,
            origin("127.0.0.1", 8710) as gateway,
            origin(LAN, 80) as lan,
            origin(LAN, 81) as beside,
            proxying(*task, granted=granted) as client,
        ):
            for url in ("http://mirror.example:3141/", "http://lan.example:80/"):
                assert (await client.ask(get(url))).endswith(BODY), url
            for url in (
                "http://mirror.example:8710/",
                f"http://{LAN}:81/",
                f"http://{LAN}:80/",  # granted, but the task does not name it
                "http://other.example:3141/",
                "http://127.0.0.1:3141/",
            ):
                assert status(await client.ask(get(url))) == 403, url
            assert [len(place.visits) for place in (mirror, gateway, lan, beside)] == [1, 0, 1, 0]

    alone(tmp_path, scenario(), mirror="127.0.0.1", lan=LAN, other="127.0.0.1")


@pytest.mark.parametrize(
    "host", ["mirror.lan", "*.lan.example:80", "169.254.169.254:80", "[::ffff:127.0.0.1]:80", "127.1:80"]
)
def test_too_wide_grant_is_refused(host: str) -> None:
    with pytest.raises(SpecError):
        Grants.parse((host,))
    with pytest.raises(ConfigError, match="FARM_PRIVATE_HOSTS"):
        load_config(environ={"FARM_PRIVATE_HOSTS": host})


def test_grants_come_from_the_operator() -> None:
    config = load_config(environ={"FARM_PRIVATE_HOSTS": "mirror.lan:3141, 127.0.0.1:3141"})
    assert config.private_hosts == ("mirror.lan:3141", "127.0.0.1:3141")
    assert len(config.granted.patterns) == 2

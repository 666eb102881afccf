"""What names lead to: the proxy in a network of its own, where addresses of the internet are in reach."""

import asyncio
import ssl
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from sandboxes.egress import EgressDecision
from tests.support.sandboxes.conformance import WAIT_S
from tests.support.sandboxes.lone_network import FAR, HERE, in_lone_network
from tests.support.sandboxes.origin import BODY, origin
from tests.support.sandboxes.proxying import Client, get, proxying, status
from tests.support.services import needs_root, require_program

pytestmark = needs_root

CONNECT = "CONNECT {0}:443 HTTP/1.1\r\nHost: {0}\r\n\r\n"


def alone(scratch: Path, scenario: Coroutine[Any, Any, None], **names: str) -> None:
    in_lone_network(lambda: scenario, {f"{name}.example": address for name, address in names.items()}, scratch)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of far.example and other.example, with its key in the same file."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = [require_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=far.example"]
    names = "subjectAltName=DNS:far.example,DNS:other.example"
    made = subprocess.run([*command, "-addext", names, "-keyout", "-"], check=True, capture_output=True)
    path.write_bytes(made.stdout)
    return path


def serving_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


async def through_tls(client: Client, certificate: Path, to: str, name: str | None) -> bytes:
    """What comes back through a tunnel to ``to`` for TLS that asks for ``name``."""
    context = ssl.create_default_context(cafile=str(certificate))
    context.check_hostname = name is not None
    reader, writer = await client.open(CONNECT.format(to))
    try:
        assert status(await reader.readuntil(b"\r\n\r\n")) == 200
        await writer.start_tls(context, server_hostname=name or "")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return await asyncio.wait_for(reader.read(), WAIT_S)
    finally:
        writer.close()


def test_named_host_is_reached_by_http_and_tls(tmp_path: Path, certificate: Path) -> None:
    async def scenario() -> None:
        async with (
            origin(FAR[0], 80) as plain,
            origin(FAR[0], 443, serving_tls(certificate)) as secure,
            proxying("far.example") as client,
        ):
            assert (await client.ask(get("http://FAR.example./x", "Host: evil.example"))).endswith(BODY)
            assert plain.visits[0].headers()[b"host"] == b"far.example"
            assert (await through_tls(client, certificate, "far.example", "far.example")).endswith(BODY)
            assert len(secure.visits) == 1
            assert {record.verdict for record in await client.records(2)} == {EgressDecision.ALLOWED}

    alone(tmp_path, scenario(), far=FAR[0])


@pytest.mark.parametrize("name", ["other.example", "far.example.evil.example", None])
def test_tunnel_with_wrong_or_missing_sni_is_refused(tmp_path: Path, certificate: Path, name: str | None) -> None:
    """The wrong name is served at the same address."""

    async def scenario() -> None:
        async with origin(FAR[0], 443, serving_tls(certificate)) as secure, proxying("far.example") as client:
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await through_tls(client, certificate, "far.example", name)
            (record,) = await client.records(1)
            assert (record.verdict, record.bytes_out) == (EgressDecision.REFUSED, 0)
            assert (name or "TLS without a name") in record.reason
            assert [visit.request for visit in secure.visits] in ([], [None])

    alone(tmp_path, scenario(), far=FAR[0])


@pytest.mark.parametrize("said", [b"SSH-2.0-x\r\n", get("/", "Host: evil.example").encode(), b"\x16\x03\x01", b""])
def test_tunnel_to_default_tls_port_carries_only_tls(tmp_path: Path, said: bytes) -> None:
    async def scenario() -> None:
        async with origin(FAR[0], 443) as far, proxying("far.example") as client:
            reader, writer = await client.open(CONNECT.format("far.example"), said)
            writer.write_eof()
            assert (await asyncio.wait_for(reader.read(), WAIT_S)).count(b"\r\n") == 2
            writer.close()
            (record,) = await client.records(1)
            assert (record.verdict, record.bytes_out) == (EgressDecision.REFUSED, 0)
            assert [visit.request for visit in far.visits] in ([], [None])

    alone(tmp_path, scenario(), far=FAR[0])


def test_explicitly_allowed_port_carries_any_protocol(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with origin(FAR[0], 443) as far, proxying("far.example:443") as client:
            reader, writer = await client.open(CONNECT.format("far.example"), get("/"))
            assert (await asyncio.wait_for(reader.read(), WAIT_S)).endswith(BODY)
            writer.close()
            assert len(far.visits) == 1

    alone(tmp_path, scenario(), far=FAR[0])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1", "at no address"),
        ("169.254.169.254", "at no address"),
        ("0.0.0.0", "at no address"),
        ("::1", "at no address"),
        ("::ffff:11.0.0.2", "at no address"),
        ("64:ff9b::b00:2", "at no address"),
        (HERE, "the machine"),
    ],
)
@pytest.mark.parametrize("pattern", ["a.near.example", "a.near.example:80", "*.near.example:80"])
def test_name_resolving_to_own_machine_is_refused(tmp_path: Path, address: str, says: str, pattern: str) -> None:
    async def scenario() -> None:
        async with origin("0.0.0.0", 80) as here, proxying(pattern) as client:
            answer = await client.ask(get("http://a.near.example/"))
            assert (status(answer), says in answer.decode()) == (403, True)
            assert [visit.request for visit in here.visits] in ([], [None])

    alone(tmp_path, scenario(), **{"a.near": address})


def test_unresolved_name_is_reported_as_unknown(tmp_path: Path) -> None:
    """Here, where no name server is in reach: another network's may take its time."""

    async def scenario() -> None:
        async with proxying("no-such-name.invalid") as client:
            unknown = await client.ask(get("http://no-such-name.invalid/"))
            assert (status(unknown), b"its name is not known" in unknown) == (502, True)
            assert [record.verdict for record in await client.records(1)] == [EgressDecision.FAILED]

    alone(tmp_path, scenario())


def test_only_public_addresses_of_name_are_tried(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with origin("127.0.0.1", 80) as here, origin(FAR[1], 80) as far, proxying("far.example") as client:
            assert (await client.ask(get("http://far.example/"))).endswith(BODY)
            assert (len(here.visits), len(far.visits)) == (0, 1)

    alone(tmp_path, scenario(), far=f"127.0.0.1 10.0.0.1 {FAR[0]} {FAR[1]}")

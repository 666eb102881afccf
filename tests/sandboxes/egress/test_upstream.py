"""The egress proxy of a machine that reaches the internet through an HTTP proxy of its operator alone."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxes.egress import EgressDecision, ProxyLimits, UpstreamProxies
from sandboxes.egress.allowlist import parse_host
from sandboxes.errors import RuntimeUnavailable
from tests.support.sandboxes.conformance import WAIT_S
from tests.support.sandboxes.origin import BODY, Origin, echo, origin
from tests.support.sandboxes.proxying import HOST, Client, get, proxying, status
from tests.support.sandboxes.upstream_proxy import UpstreamProxy, upstream_proxy
from tests.support.services import require_program

PACKAGES = "packages.invalid"
"""A name that no resolver knows (RFC 2606)."""
CONNECT = "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n"


def through(proxy: UpstreamProxy, **others: str) -> UpstreamProxies:
    return UpstreamProxies.parse({"http_proxy": proxy.url, "HTTPS_PROXY": proxy.url, **others})


@pytest.fixture
async def far() -> AsyncIterator[Origin]:
    async with origin() as server:
        yield server


@pytest.fixture
async def proxy(far: Origin) -> AsyncIterator[UpstreamProxy]:
    async with upstream_proxy({PACKAGES: far.port, "10.1.2.3": far.port}) as found:
        yield found


async def tunnel(client: Client, authority: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await client.open(CONNECT.format(authority))
    assert status(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)) == 200
    return reader, writer


@pytest.mark.parametrize(("port", "authority"), [("", PACKAGES), (":3141", f"{PACKAGES}:3141")])
async def test_plain_http_goes_through_the_operators_proxy(
    far: Origin, proxy: UpstreamProxy, port: str, authority: str
) -> None:
    async with proxying(f"{PACKAGES}{port}", upstreams=through(proxy)) as client:
        answer = await client.ask(get(f"http://{PACKAGES}{port}/a/b", "Host: x", "Proxy-Authorization: Basic bWluZQ=="))
        assert answer.endswith(BODY)
        (record,) = await client.records(1)
        assert (record.host, record.verdict, record.bytes_in) == (PACKAGES, EgressDecision.ALLOWED, len(answer))
    assert proxy.asked == [("GET", f"http://{authority}/a/b")]
    (visit,) = far.visits
    assert visit.headers() == {b"host": authority.encode(), b"connection": b"close"}


async def test_body_goes_through_the_operators_proxy(far: Origin, proxy: UpstreamProxy) -> None:
    async with proxying(PACKAGES, upstreams=through(proxy)) as client:
        request = f"POST http://{PACKAGES}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
        assert (await client.ask(request)).endswith(BODY)
    assert far.visits[0].body == b"hello"


async def test_tunnel_goes_through_the_operators_proxy() -> None:
    async with (
        echo() as port,
        upstream_proxy({PACKAGES: port}) as proxy,
        proxying(f"{PACKAGES}:7000", upstreams=through(proxy)) as client,
    ):
        reader, writer = await tunnel(client, f"{PACKAGES}:7000")
        writer.write(b"x" * 200_000)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b"x" * 200_000
        writer.close()
        assert proxy.asked == [("CONNECT", f"{PACKAGES}:7000")]


async def test_tunnel_passes_greeting_of_host() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 welcome\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(greet, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with (
        server,
        upstream_proxy({PACKAGES: port}) as proxy,
        proxying(f"{PACKAGES}:7000", upstreams=through(proxy)) as client,
    ):
        reader, writer = await tunnel(client, f"{PACKAGES}:7000")
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b"220 welcome\r\n\r\n"
        writer.close()


async def test_upstream_tunnel_to_tls_port_carries_only_tls(far: Origin, proxy: UpstreamProxy) -> None:
    async with proxying(PACKAGES, upstreams=through(proxy)) as client:
        reader, writer = await tunnel(client, f"{PACKAGES}:443")
        writer.write(get("/").encode())
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        (record,) = await client.records(1)
        assert (record.verdict, record.bytes_out) == (EgressDecision.REFUSED, 0)
    assert [visit.request for visit in far.visits] in ([], [None])


@pytest.mark.parametrize("target", ["http://other.invalid/", f"http://{PACKAGES}:81/", "http://10.1.2.3:3141/"])
async def test_forbidden_target_is_not_sent_to_upstream_proxy(proxy: UpstreamProxy, target: str) -> None:
    async with proxying(PACKAGES, "10.1.2.3:3141", granted=(), upstreams=through(proxy)) as client:
        assert status(await client.ask(get(target))) == 403
    assert proxy.asked == []


async def test_granted_address_goes_through_the_proxy(far: Origin, proxy: UpstreamProxy) -> None:
    private = "10.1.2.3:3141"
    async with proxying(private, granted=[private], upstreams=through(proxy)) as client:
        assert (await client.ask(get(f"http://{private}/"))).endswith(BODY)
    assert len(far.visits) == 1


async def test_own_machine_and_no_proxy_hosts_bypass_proxy(far: Origin, proxy: UpstreamProxy) -> None:
    async with proxying(f"{HOST}:{far.port}", PACKAGES, upstreams=through(proxy, no_proxy=f"x,.{PACKAGES}")) as client:
        assert (await client.ask(get(f"http://{HOST}:{far.port}/"))).endswith(BODY)
        answer = await client.ask(get(f"http://{PACKAGES}/"))
        assert status(answer) == 502
        assert b"its name is not known" in answer
    assert proxy.asked == []


@pytest.mark.parametrize("request_line", [get(f"http://{PACKAGES}/"), CONNECT.format(f"{PACKAGES}:443")])
async def test_missing_proxy_is_reported_without_its_address(request_line: str) -> None:
    async with upstream_proxy({}) as proxy:
        pass
    async with proxying(PACKAGES, upstreams=through(proxy)) as client:
        answer = await client.ask(request_line)
        assert status(answer) == 502
        assert b"the operator's proxy is not there" in answer
        assert str(proxy.port).encode() not in answer
        (record,) = await client.records(1)
        assert record.verdict is EgressDecision.FAILED


async def test_tunnel_refused_by_proxy_is_reported(proxy: UpstreamProxy) -> None:
    async with proxying("other.invalid", upstreams=through(proxy)) as client:
        answer = await client.ask(CONNECT.format("other.invalid:443"))
        assert status(answer) == 502
        assert b"the operator's proxy answers 403" in answer
        (record,) = await client.records(1)
        assert record.verdict is EgressDecision.FAILED


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-x\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 200"])
async def test_proxy_without_http_is_reported(said: bytes) -> None:
    async def babble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(said)
            writer.close()

    server = await asyncio.start_server(babble, HOST, 0)
    async with server:
        upstreams = UpstreamProxies.parse({"https_proxy": f"{HOST}:{server.sockets[0].getsockname()[1]}"})
        async with proxying(PACKAGES, upstreams=upstreams) as client:
            answer = await client.ask(CONNECT.format(f"{PACKAGES}:443"))
            assert status(answer) == 502


async def test_silent_proxy_is_disconnected_after_timeout() -> None:
    was_left = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        was_left.set()

    server = await asyncio.start_server(wait, HOST, 0)
    async with server:
        upstreams = UpstreamProxies.parse({"https_proxy": f"{HOST}:{server.sockets[0].getsockname()[1]}"})
        async with proxying(PACKAGES, upstreams=upstreams, bounds=ProxyLimits(connect_s=0.3)) as client:
            assert status(await client.ask(CONNECT.format(f"{PACKAGES}:443"))) == 504
            await asyncio.wait_for(was_left.wait(), WAIT_S)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a certificate of the proxy's address, with its key in the same file."""
    path = tmp_path / "proxy.pem"
    command = [require_program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=proxy"]
    made = subprocess.run([*command, "-addext", f"subjectAltName=IP:{HOST}", "-keyout", "-"], capture_output=True)
    path.write_bytes(made.stdout)
    return path


async def test_proxy_may_speak_tls(certificate: Path) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    async with echo() as port, origin() as far, upstream_proxy({"a.invalid": port, PACKAGES: far.port}, serving) as one:
        url = one.url.replace("http:", "https:")
        upstreams = UpstreamProxies.parse({"http_proxy": url, "https_proxy": url}, certificate)
        async with proxying("a.invalid:7000", PACKAGES, upstreams=upstreams) as client:
            assert (await client.ask(get(f"http://{PACKAGES}/"))).endswith(BODY)
            reader, writer = await tunnel(client, "a.invalid:7000")
            writer.write(b"hello")
            assert await asyncio.wait_for(reader.readexactly(5), WAIT_S) == b"hello"
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            writer.close()


@pytest.mark.parametrize(
    ("no_proxy", "host", "port", "is_through"),
    [
        ("", "pypi.org", 443, True),
        ("pypi.org", "pypi.org", 443, False),
        (".PyPI.org", "test.pypi.org", 443, False),
        ("pypi.org", "notpypi.org", 443, True),
        ("a, pypi.org:8443 ,b", "pypi.org", 443, True),
        ("a, pypi.org:8443 ,b", "pypi.org", 8443, False),
        ("10.0.0.0/8,[::1]", "10.0.0.1", 443, True),
        ("10.0.0.1", "10.0.0.1", 443, False),
        ("*", "pypi.org", 443, False),
        ("", "localhost", 443, False),
        ("", "127.0.0.9", 443, False),
        ("", "[::1]", 443, False),
    ],
)
def test_hosts_in_no_proxy_bypass_the_proxy(no_proxy: str, host: str, port: int, is_through: bool) -> None:
    upstreams = UpstreamProxies.parse({"https_proxy": "proxy.lan:3128", "NO_PROXY": no_proxy})
    assert (upstreams.find(parse_host(host), port, is_tunnel=True) is not None) is is_through
    assert upstreams.find(parse_host(host), port, is_tunnel=False) is None


@pytest.mark.parametrize("url", ["socks5://proxy.lan:1080", "http://", "http://proxy.lan:99999", "http://[::1"])
def test_invalid_proxy_address_names_its_variable(url: str) -> None:
    with pytest.raises(RuntimeUnavailable, match="https_proxy is not the address of an HTTP proxy"):
        UpstreamProxies.parse({"HTTPS_PROXY": url})

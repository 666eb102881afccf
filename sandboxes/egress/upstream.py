"""Connect through the operator's own HTTP proxy, if this machine has one.

| variable                    | meaning                                                                      |
|-----------------------------|------------------------------------------------------------------------------|
| ``http_proxy``              | ``http://USER:PASSWORD@HOST:PORT`` for requests of plain HTTP                |
| ``https_proxy``             | the same for tunnels                                                         |
| ``no_proxy``                | hosts reached directly, with all names below them; ``HOST:PORT``; ``*``: all |

The proxy resolves names and decides which addresses it reaches. The farm checks only a host that is requested by
address. This machine is always reached directly.
"""

import base64
import re
import ssl
from asyncio import IncompleteReadError, LimitOverrunError, StreamReader, StreamWriter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

import h11

from sandboxes.egress.addresses import is_local_name
from sandboxes.egress.allowlist import HTTP_PORT, HTTPS_PORT, Host, show
from sandboxes.errors import RuntimeUnavailable

SCHEMES = ("http", "https")

_PLAIN_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?", re.ASCII)
_STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_PORTS = {"http": HTTP_PORT, "https": HTTPS_PORT}


class ProxyRefused(Exception):
    """The operator's proxy did not open a tunnel. The message contains neither its address nor its login."""


@dataclass(frozen=True, slots=True)
class UpstreamProxy:
    """One proxy. ``authorization`` is the value of the Proxy-Authorization header, or empty. ``tls`` None: plain
    connection.
    """

    host: str
    port: int
    authorization: str = ""
    tls: ssl.SSLContext | None = None

    def carry(self, request: h11.Request, host: Host, port: int) -> h11.Request:
        """Return a request to ``host`` in the form that the proxy expects."""
        authority = show(host, port).removesuffix(f":{HTTP_PORT}")
        target = f"http://{authority}".encode("ascii") + request.target
        headers = [*request.headers.raw_items(), *self._login()]
        return h11.Request(method=request.method, target=target, headers=headers)

    async def open_tunnel(self, reader: StreamReader, writer: StreamWriter, host: Host, port: int) -> None:
        """Ask the proxy for a tunnel. Raises ProxyRefused, and OSError."""
        authority = show(host, port).encode("ascii")
        request = h11.Request(method=b"CONNECT", target=authority, headers=[(b"Host", authority), *self._login()])
        writer.write(h11.Connection(h11.CLIENT).send(request) or b"")
        await writer.drain()
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (IncompleteReadError, LimitOverrunError):
            raise ProxyRefused("the operator's proxy gives no answer that can be read") from None
        status = _STATUS.match(head)
        if status is None or not status[1].startswith(b"2"):
            problem = f"answers {status[1].decode()}" if status else "gives no answer that can be read"
            raise ProxyRefused(f"the operator's proxy {problem}")

    def _login(self) -> list[tuple[bytes, bytes]]:
        return [(b"Proxy-Authorization", self.authorization.encode())] if self.authorization else []


@dataclass(frozen=True, slots=True)
class UpstreamProxies:
    """The proxies of this machine. Without a proxy, hosts are reached directly."""

    http: UpstreamProxy | None = None
    https: UpstreamProxy | None = None
    direct: tuple[str, ...] = ()

    @classmethod
    def parse(cls, variables: Mapping[str, str], ca_bundle: Path | None = None) -> Self:
        """Read the proxy variables, in either spelling.

        ``ca_bundle`` is trusted for proxies with TLS. Raises RuntimeUnavailable if a proxy address is invalid.
        """
        urls = proxy_urls(variables)
        found = {scheme: _parse(f"{scheme}_proxy", url, ca_bundle) for scheme, url in urls.items()}
        return cls(found.get("http"), found.get("https"), hosts_without_proxy(variables))

    def find(self, host: Host, port: int, *, is_tunnel: bool) -> UpstreamProxy | None:
        """Return the proxy for a host; None if the host is reached directly."""
        if is_local_name(host) if isinstance(host, str) else host.is_loopback:
            return None
        if any(_matches(entry, str(host), port) for entry in self.direct):
            return None
        return self.https if is_tunnel else self.http


def proxy_urls(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy URLs by the scheme of the requests that they serve; none if ``no_proxy`` is ``*``."""
    lowered = {name.lower(): value for name, value in variables.items()}
    if "*" in _listed(lowered):
        return {}
    urls = {scheme: lowered.get(f"{scheme}_proxy", "") for scheme in SCHEMES}
    return {scheme: url if "://" in url else f"http://{url}" for scheme, url in urls.items() if url}


def hosts_without_proxy(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of ``no_proxy``, without a leading dot."""
    lowered = {name.lower(): value for name, value in variables.items()}
    return tuple(host for entry in _listed(lowered) if _PLAIN_HOST.fullmatch(host := entry.lstrip(".")))


def unusable(variable: str) -> RuntimeUnavailable:
    return RuntimeUnavailable(f"{variable} is not the address of an HTTP proxy; write http://HOST:PORT")


def _listed(lowered: Mapping[str, str]) -> list[str]:
    return [part.strip().lower() for part in lowered.get("no_proxy", "").split(",")]


def _parse(variable: str, url: str, ca_bundle: Path | None) -> UpstreamProxy:
    try:
        parts = urlsplit(url)
        port = _PORTS[parts.scheme] if parts.port is None else parts.port
    except (ValueError, KeyError):
        raise unusable(variable) from None
    if not parts.hostname or parts.scheme not in SCHEMES:
        raise unusable(variable)
    tls = ssl.create_default_context(cafile=str(ca_bundle) if ca_bundle else None) if parts.scheme == "https" else None
    return UpstreamProxy(parts.hostname, port, _authorization(parts), tls)


def _authorization(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(login.encode()).decode()}"


def _matches(entry: str, host: str, port: int) -> bool:
    name, _, only_port = entry.partition(":")
    return (host == name or host.endswith(f".{name}")) and only_port in ("", str(port))

"""Parse a proxy request strictly: h11 parses it, and the forwarded request is serialized again from the
parsed values.
"""

import re
from dataclasses import dataclass
from http import HTTPStatus

import h11

from sandboxes.egress.allowlist import HTTP_PORT, Host, parse_authority, show
from sandboxes.egress.log import EgressDecision

HEAD_BYTES_MAX = 16 * 1024
MESSAGE_CHARS = 300

_ABSOLUTE = re.compile(r"http://([^/?#\\@]*)([/?][^#]*)?", re.IGNORECASE)
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"host",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    }
)


class RequestRefused(Exception):
    """A request that the proxy answers itself, with an error status."""

    def __init__(self, status: HTTPStatus, message: str, verdict: EgressDecision = EgressDecision.REFUSED) -> None:
        super().__init__(message[:MESSAGE_CHARS])
        self.status = status
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A parsed request. ``forward`` is the request to send to the host; None asks for a tunnel."""

    host: Host
    port: int
    forward: h11.Request | None


def parse_proxy_request(request: h11.Request) -> ProxyRequest:
    """Parse an absolute-form HTTP request or CONNECT. Raises RequestRefused with 4xx or 505 for any other request."""
    target = request.target.decode("latin-1")
    try:
        if request.method == b"CONNECT":
            host, port = parse_authority(target)
            if port is None:
                raise ValueError(f"{target!r} names no port")
            return ProxyRequest(host, port, None)
        match = _ABSOLUTE.fullmatch(target)
        if match is None:
            raise ValueError("this is a proxy: ask for http://host/path, or for a tunnel with CONNECT")
        host, port = parse_authority(match[1])
    except ValueError as error:
        raise RequestRefused(HTTPStatus.BAD_REQUEST, str(error)) from None
    if request.http_version != b"1.1":
        raise RequestRefused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "speak HTTP/1.1")
    path = match[2] or "/"
    return ProxyRequest(
        host, port or HTTP_PORT, _forward(request, host, port, path if path.startswith("/") else f"/{path}")
    )


def _forward(request: h11.Request, host: Host, port: int | None, path: str) -> h11.Request:
    """Build the forwarded request: its Host is that of the target (RFC 9112, 3.2.2), and the connection closes after
    it.
    """
    connection_options = {name for key, value in request.headers if key == b"connection" for name in _tokens(value)}
    framing = [key for key, _ in request.headers if key in (b"content-length", b"transfer-encoding")]
    if len(framing) > 1 or connection_options.intersection(framing):
        raise RequestRefused(HTTPStatus.BAD_REQUEST, "the length of the body is said in more than one way")
    kept = [(key, value) for key, value in request.headers if key not in _HOP_BY_HOP and key not in connection_options]
    authority = show(host, port) if port is not None else show(host, HTTP_PORT).removesuffix(f":{HTTP_PORT}")
    return h11.Request(
        method=request.method,
        target=path.encode("latin-1"),
        headers=[(b"Host", authority.encode("ascii")), *kept, (b"Connection", b"close")],
    )


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip().lower() for token in value.split(b",")]

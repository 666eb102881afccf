"""The address of a policy's endpoint, parsed strictly, because a key is sent there."""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Self
from urllib.parse import urlsplit

CHAT = "/chat/completions"
FORM = "write http://HOST:PORT/v1 or https://HOST/v1: no user, query, fragment or escapes"

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATH = re.compile(r"(?:/[A-Za-z0-9._~:@+-]+)*/?")
_PORTS = {"http": 80, "https": 443}
_MAX_CHARS = 2048


@dataclass(frozen=True, slots=True)
class EndpointUrl:
    """A parsed URL. ``host`` is a lower-case name or an address without brackets; ``path`` has no trailing slash."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL.

        Raises ValueError with the required form; the message omits the text, because it may contain a password.
        """
        if len(text) > _MAX_CHARS or not text.isascii() or not text.isprintable() or set(text) & set(" \\?#%"):
            raise ValueError(FORM)
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise ValueError(FORM) from None
        if parts.scheme not in _PORTS or port == 0 or "@" in parts.netloc or parts.netloc.endswith(":"):
            raise ValueError(FORM)
        if not _PATH.fullmatch(parts.path) or {".", ".."} & {*parts.path.split("/")}:
            raise ValueError(FORM)
        path = parts.path.rstrip("/").removesuffix(CHAT).rstrip("/")
        return cls(parts.scheme, _normalise_host(parts.hostname or ""), port or _PORTS[parts.scheme], path)

    def covers(self, other: "EndpointUrl") -> bool:
        """Return True if ``other`` is this address or below its path, compared by whole path segments."""
        same = (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)
        return same and (other.path == self.path or other.path.startswith(f"{self.path}/"))

    @property
    def is_loopback(self) -> bool:
        """True if the host is a loopback address or name."""
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def _normalise_host(name: str) -> str:
    """Return the canonical spelling of a host.

    Raises ValueError if it is invalid, or a short or hexadecimal address such as 127.1 or 0x7f000001.
    """
    try:
        if ":" in name:
            return str(IPv6Address(name))
        plain = name.removesuffix(".")
        labels = plain.split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return str(IPv4Address(plain))
    except AddressValueError:
        raise ValueError(FORM) from None
    if len(plain) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(FORM)
    return plain

"""Which hosts a sandbox may reach: patterns, and the addresses that a name of theirs may stand for.

| pattern                     | admits                                         | at                          |
|-----------------------------|------------------------------------------------|-----------------------------|
| ``pypi.org``                | that name; ports 80 and 443                    | addresses of the internet   |
| ``*.pythonhosted.org``      | names below it, at any depth; ports 80 and 443 | addresses of the internet   |
| ``*.pythonhosted.org:8443`` | the same; that port                            | addresses of the internet   |
| ``mirror.lan:3141``         | that name; that port                           | these, and private networks |
| ``10.0.0.7:3141``           | that address, whatever it is; that port        | itself                      |

A name is never followed to loopback, link-local addresses (the cloud's metadata) and the like, whatever was granted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Self

from sandboxes.errors import SpecError

Address = IPv4Address | IPv6Address
Host = str | Address
"""A name in lower case without a dot at its end, or an address."""

HTTP_PORT, HTTPS_PORT = 80, 443
PATTERNS_MAX = 256

GLOBAL_UNICAST = IPv6Network("2000::/3")
PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
UNIQUE_LOCAL = IPv6Network("fc00::/7")

_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def parse_host(text: str) -> Host:
    """Raises ValueError, also for what a resolver would take for an address though it is not written as one."""
    if text.startswith("["):
        if not text.endswith("]") or "%" in text:
            raise ValueError(f"{text!r} is not an address")
        return IPv6Address(text[1:-1])
    name = text.lower().removesuffix(".") if text.isascii() else ""
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return IPv4Address(name)
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is not the name of a host")
    return name


def parse_authority(text: str) -> tuple[Host, int | None]:
    """``host`` or ``host:port``, and nothing else: no user, no space, no empty port. Raises ValueError."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not host:port")
    port = int(match[2]) if match[2] else None
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(f"{text!r} names a port that there is none of")
    return parse_host(match[1]), port


def show(host: Host, port: int) -> str:
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"


def is_public(address: Address) -> bool:
    """An address of the internet, and one that stands for itself: no IPv4 address is wrapped in it."""
    if isinstance(address, IPv6Address) and (
        address not in GLOBAL_UNICAST or address.sixtofour is not None or address.teredo is not None
    ):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def is_private(address: Address) -> bool:
    """An address that a site gives to its own machines (RFC 1918, RFC 4193)."""
    if isinstance(address, IPv6Address):
        return address in UNIQUE_LOCAL
    return any(address in network for network in PRIVATE)


@dataclass(frozen=True, slots=True)
class Pattern:
    """``host`` is what a wildcard's names lie below. ``port`` None: both default ports."""

    host: Host
    below: bool
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        below = text.startswith("*.")
        host, port = parse_authority(text.removeprefix("*."))
        if below and (not isinstance(host, str) or "." not in host):
            raise ValueError(f"{text!r} is too wide: a wildcard stands before a name of two parts at least")
        if not isinstance(host, str) and port is None and not is_public(host):
            raise ValueError(f"{text!r} is no address of the internet: give its port too, if that is what you want")
        return cls(host, below, port)

    def admits(self, host: Host, port: int) -> bool:
        if port not in ((HTTP_PORT, HTTPS_PORT) if self.port is None else (self.port,)):
            return False
        if self.below:
            return isinstance(host, str) and host.endswith(f".{self.host}")
        return host == self.host

    def permits(self, address: Address) -> bool:
        """Whether what it admits may be looked for at ``address``."""
        if not isinstance(self.host, str):
            return address == self.host
        return is_public(address) or (self.port is not None and not self.below and is_private(address))

    @property
    def vouched(self) -> bool:
        """A name at its default ports: then what is spoken must be meant for that name."""
        return isinstance(self.host, str) and self.port is None


@dataclass(frozen=True, slots=True)
class AllowList:
    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Raises SpecError."""
        if isinstance(texts, str) or len(texts) > PATTERNS_MAX:
            raise SpecError(f"egress: give a list of at most {PATTERNS_MAX} hosts")
        try:
            return cls(tuple(map(Pattern.parse, texts)))
        except ValueError as error:
            raise SpecError(
                f"egress: {error}; write a host such as pypi.org, *.pythonhosted.org or host:port"
            ) from None

    def find(self, host: Host, port: int) -> Pattern | None:
        """The pattern that admits it; the one that grants most, where several do."""
        found = [pattern for pattern in self.patterns if pattern.admits(host, port)]
        return max(found, key=lambda pattern: (pattern.port is not None, not pattern.below), default=None)

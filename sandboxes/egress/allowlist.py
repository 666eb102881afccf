"""The hosts that a sandbox may reach: its task names them, and the operator must grant hosts of private networks.

| pattern of a task           | admits                                         |
|-----------------------------|------------------------------------------------|
| ``pypi.org``                | that name; ports 80 and 443                    |
| ``*.pythonhosted.org``      | names below it, at any depth; ports 80 and 443 |
| ``*.pythonhosted.org:8443`` | the same; that port                            |
| ``mirror.lan:3141``         | that name; that port                           |
| ``10.0.0.7:3141``           | that address; that port                        |

An admitted host is reached only at public addresses. Loopback, the node's own addresses and private networks also need
a grant of the operator. Link-local addresses, a cloud's metadata, multicast and IPv4 addresses embedded in IPv6 are
always refused.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Self

from sandboxes.egress.addresses import Address, is_local_name, is_own, is_public, is_usable
from sandboxes.errors import SpecError

Host = str | Address
"""A host name in lower case without a trailing dot, or an address."""

HTTP_PORT, HTTPS_PORT = 80, 443
PATTERNS_MAX = 256

_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def parse_host(text: str) -> Host:
    """Parse a host name or an address.

    Raises ValueError, also for a name that a resolver would read as an address in an unusual notation.
    """
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
    """Parse ``host`` or ``host:port``, without user, spaces or an empty port. Raises ValueError."""
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not host:port")
    port = int(match[2]) if match[2] else None
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(f"{text!r} names a port that there is none of")
    return parse_host(match[1]), port


def show(host: Host, port: int) -> str:
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern of an allow-list. ``below``: matches the names below ``host``. ``port`` None: both default ports."""

    host: Host
    below: bool
    port: int | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pattern. Raises ValueError."""
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

    @property
    def local(self) -> bool:
        """True if the pattern names this machine, or an address that is never allowed."""
        if isinstance(self.host, str):
            return is_local_name(self.host)
        return self.host.is_loopback or not is_usable(self.host)

    @property
    def vouched(self) -> bool:
        """True for a name at its default ports: the protocol (HTTP Host or TLS SNI) must then name this host."""
        return isinstance(self.host, str) and self.port is None


@dataclass(frozen=True, slots=True)
class AllowList:
    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Parse the patterns of a task. Raises SpecError."""
        if isinstance(texts, str) or len(texts) > PATTERNS_MAX:
            raise SpecError(f"egress is not a list of at most {PATTERNS_MAX} hosts; shorten it")
        try:
            return cls(tuple(map(Pattern.parse, texts)))
        except ValueError as error:
            raise SpecError(
                f"egress: {error}; write a host such as pypi.org, *.pythonhosted.org or host:port"
            ) from None

    def refuse_local(self) -> None:
        """Check that no pattern names this machine, or an address that no operator can grant. Raises SpecError."""
        for pattern in self.patterns:
            if pattern.local:
                raise SpecError(
                    f"egress: {pattern.host} is loopback, this machine, or an address that no sandbox may reach; "
                    "name a host of the internet, or one that the operator grants by its name (private_hosts)"
                )

    def find(self, host: Host, port: int) -> Pattern | None:
        """Return the pattern that admits the host, the most permissive one if there are several; None if
        there is none.
        """
        found = [pattern for pattern in self.patterns if pattern.admits(host, port)]
        return max(found, key=lambda pattern: (pattern.port is not None, not pattern.below), default=None)


@dataclass(frozen=True, slots=True)
class Grants:
    """Hosts of this machine and of private networks that the operator lets sandboxes reach if their tasks name them.

    Each pattern has a port and names one host: an address, or a name with all its addresses.
    """

    patterns: tuple[Pattern, ...] = ()

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Parse the operator's patterns. Raises SpecError."""
        patterns = AllowList.parse(texts).patterns
        for text, pattern in zip(texts, patterns, strict=True):
            if pattern.port is None or pattern.below:
                raise SpecError(f"egress: {text!r} grants more than one port of a host; write HOST:PORT")
            if not isinstance(pattern.host, str) and not is_usable(pattern.host):
                raise SpecError(f"egress: {text!r} is an address that no sandbox may reach; name another host")
        return cls(patterns)

    @property
    def own_names(self) -> tuple[str, ...]:
        """The granted names of this machine. A task that names one is refused here and accepted on another machine."""
        return tuple(str(pattern.host) for pattern in self.patterns if isinstance(pattern.host, str) and pattern.local)

    def refusal(self, host: Host, port: int, address: Address) -> str:
        """Return why ``host`` may not be reached at ``address``; "" if it may."""
        granted = (pattern.host for pattern in self.patterns if pattern.port == port)
        if is_usable(address) and any(
            grant == address or (isinstance(grant, str) and grant == host) for grant in granted
        ):
            return ""
        if not is_public(address):
            return f"{host} is at no address that a sandbox may reach, unless the farm's operator grants it"
        return f"{host} is the machine that the sandbox is on" if is_own(address) else ""

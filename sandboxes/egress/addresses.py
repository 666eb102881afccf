"""Classify IP addresses: public, private, of this machine, or never allowed."""

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import psutil

Address = IPv4Address | IPv6Address

GLOBAL_UNICAST = IPv6Network("2000::/3")
PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")))
UNIQUE_LOCAL = IPv6Network("fc00::/7")
METADATA = frozenset(
    map(ip_address, ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"))
)
"""Addresses of clouds' metadata services, in addition to the link-local 169.254.169.254."""

_LOCAL_NAMES = frozenset(
    {"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "loopback"}
)
_SOME_PORT = 9


def is_public(address: Address) -> bool:
    """Return whether the address is public and contains no IPv4 address (6to4, Teredo, NAT64)."""
    if isinstance(address, IPv6Address) and (
        address not in GLOBAL_UNICAST or address.sixtofour is not None or address.teredo is not None
    ):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved and address not in METADATA


def is_private(address: Address) -> bool:
    """Return whether the address is of a private network (RFC 1918, RFC 6598, RFC 4193)."""
    if address in METADATA:
        return False
    if isinstance(address, IPv6Address):
        return address in UNIQUE_LOCAL
    return any(address in network for network in PRIVATE)


def is_usable(address: Address) -> bool:
    """Return whether a connection may be allowed at all: the address is public, private or loopback, and
    not metadata.
    """
    return is_public(address) or is_private(address) or address.is_loopback


def is_own(address: Address) -> bool:
    """Return whether packets to the address stay on this machine, by its current interfaces and routes."""
    if address.is_loopback or address.is_unspecified:
        return True
    interfaces = (entry.address for entries in psutil.net_if_addrs().values() for entry in entries)
    if str(address) in (found.partition("%")[0] for found in interfaces):
        return True
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), _SOME_PORT))  # selects a route without sending a packet
        except OSError:
            return False
        return bool(probe.getsockname()[0] == str(address))


def is_local_name(name: str) -> bool:
    """Return whether the name stands for this machine, without resolving it."""
    plain = name.lower().removesuffix(".")
    own = socket.gethostname().lower()
    return plain in _LOCAL_NAMES or plain.endswith(".localhost") or plain in (own, own.partition(".")[0])

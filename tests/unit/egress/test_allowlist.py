"""Which hosts an allow-list admits, and at which addresses."""

import socket
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes import SpecError
from sandboxes.egress.addresses import is_public
from sandboxes.egress.allowlist import AllowList, Grants, parse_authority, parse_host, show

LIST = (
    "pypi.org",
    "*.pythonhosted.org",
    "mirror.lan:3141",
    "*.deep.lan:8443",
    "10.0.0.7:3141",
    "[fd00::7]:80",
    "1.1.1.1",
)


@pytest.mark.parametrize(
    ("authority", "admitted"),
    [
        ("pypi.org:443", True),
        ("PyPI.org.:80", True),
        ("pypi.org:8080", False),
        ("evil-pypi.org:443", False),
        ("pypi.org.evil.net:443", False),
        ("www.pypi.org:443", False),
        ("files.pythonhosted.org:443", True),
        ("a.b.pythonhosted.org:80", True),
        ("pythonhosted.org:443", False),
        ("xpythonhosted.org:443", False),
        ("mirror.lan:3141", True),
        ("mirror.lan:443", False),
        ("a.deep.lan:8443", True),
        ("a.deep.lan:443", False),
        ("10.0.0.7:3141", True),
        ("10.0.0.7:80", False),
        ("10.0.0.8:3141", False),
        ("[::ffff:10.0.0.7]:3141", False),
        ("[fd00:0:0::7]:80", True),
        ("1.1.1.1:443", True),
    ],
)
def test_list_admits_only_matching_hosts(authority: str, admitted: bool) -> None:
    host, port = parse_authority(authority)
    assert port is not None
    assert (AllowList.parse(LIST).find(host, port) is not None) is admitted


def test_an_empty_list_admits_nothing() -> None:
    assert AllowList.parse(()).find("pypi.org", 443) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*",
        "*.org",
        "*.",
        "*pypi.org",
        "a.*.org",
        "**.pypi.org",
        "http://pypi.org",
        "pypi.org/simple",
        "user@pypi.org",
        "pypi.org:",
        "pypi.org:0",
        "pypi.org:65536",
        "pypi.org:80:80",
        "pypi org",
        "pypi..org",
        ".pypi.org",
        "-pypi.org",
        "pypi.org\n",
        "p\u00ffpi.org",
        "\u212ayoto.org",
        "a" * 64 + ".org",
        ".".join(["a" * 60] * 5),
        "127.1",
        "0x7f000001",
        "2130706433",
        "010.0.0.1",
        "1.2.3.4.5",
        "*.1.2.3.4",
        "10.0.0.0/8",
        "127.0.0.1",
        "10.0.0.7",
        "169.254.169.254",
        "::1",
        "[::1]",
        "[fe80::1%eth0]:80",
        "[::1",
        "[1.2.3.4]:80",
    ],
)
def test_invalid_pattern_gives_one_line_error(pattern: str) -> None:
    with pytest.raises(SpecError, match=r"^egress: ") as refused:
        AllowList.parse((pattern,))
    assert "\n" not in str(refused.value)


def test_value_must_be_list_of_limited_length() -> None:
    for wrong in ("pypi.org", ("pypi.org",) * 257):
        with pytest.raises(SpecError):
            AllowList.parse(wrong)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("1.1.1.1", True),
        ("151.101.0.223", True),
        ("2606:4700::1111", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("100.100.100.200", False),
        ("127.0.0.1", False),
        ("127.255.255.254", False),
        ("169.254.169.254", False),
        ("172.17.0.1", False),
        ("192.0.2.1", False),
        ("192.168.1.1", False),
        ("198.18.0.1", False),
        ("224.0.0.251", False),
        ("239.1.1.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::127.0.0.1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:1.1.1.1", False),
        ("64:ff9b::169.254.169.254", False),
        ("64:ff9b:1::1", False),
        ("100::1", False),
        ("2001::1", False),
        ("2001:db8::1", False),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("ff0e::1", False),
    ],
)
def test_public_addresses_are_recognized(address: str, public: bool) -> None:
    assert is_public(ip_address(address)) is public


@pytest.mark.parametrize(
    ("granted", "asked", "permitted", "not_permitted"),
    [
        ("", "mirror.lan:3141", "1.1.1.1", "10.0.0.1 192.168.0.1 127.0.0.1 169.254.169.254 fd00::1 ::1"),
        ("mirror.lan:80", "mirror.lan:3141", "1.1.1.1", "10.0.0.1 127.0.0.1"),
        ("other.lan:3141", "mirror.lan:3141", "1.1.1.1", "10.0.0.1 127.0.0.1"),
        (
            "mirror.lan:3141",
            "mirror.lan:3141",
            "1.1.1.1 10.0.0.1 100.64.0.1 172.16.0.1 192.168.0.1 fd00::1 127.0.0.1 ::1",
            "169.254.169.254 100.100.100.200 0.0.0.0 ::ffff:10.0.0.1 fe80::1 64:ff9b::a00:1 2002:a00:1:: 168.63.129.16",
        ),
        ("10.0.0.7:80", "mirror.lan:80", "10.0.0.7 1.1.1.1", "10.0.0.8 ::ffff:10.0.0.7"),
        ("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1", "127.0.0.2 ::1 ::ffff:127.0.0.1"),
        ("127.0.0.1:80", "127.0.0.1:8710", "", "127.0.0.1"),
    ],
)
def test_granted_hosts_may_resolve_only_to_permitted_addresses(
    granted: str, asked: str, permitted: str, not_permitted: str
) -> None:
    grants = Grants.parse(granted.split())
    host, port = parse_authority(asked)
    assert port is not None
    assert [address for address in permitted.split() if grants.refusal(host, port, ip_address(address))] == []
    assert [address for address in not_permitted.split() if not grants.refusal(host, port, ip_address(address))] == []


def test_broadest_matching_pattern_decides() -> None:
    allowed = AllowList.parse(("*.mirror.lan", "a.mirror.lan", "*.mirror.lan:443", "a.mirror.lan:443"))
    found = allowed.find("a.mirror.lan", 443)
    assert found is not None
    assert (found.below, found.port) == (False, 443)


@given(st.text(max_size=40))
def test_parsed_host_round_trips(text: str) -> None:
    try:
        host = parse_host(text)
    except ValueError:
        return
    assert parse_authority(show(host, 80)) == (host, 80)
    assert str(host).isascii()
    assert not set(str(host)) & set(" /@?#\\\r\n%[]")


def test_grants_of_this_machines_own_names_are_found() -> None:
    """A task that names one is refused on this machine and accepted on the others."""
    own = socket.gethostname().lower()
    granted = Grants.parse(["mirror.lan:3141", f"{own}:3141", "localhost:80", "10.0.0.7:3141", "127.0.0.1:80"])
    assert granted.own_names == (own, "localhost")

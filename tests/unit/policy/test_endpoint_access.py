"""The cause and the remedy that a refused address of an endpoint has."""

import pytest

from farm.policy.base import PolicyError
from farm.policy.endpoint_access import EndpointAccess


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://0.0.0.0:8000/v1", "no client reaches it; name an address of the server's machine"),
        ("http://[::]:8000/v1", "no client reaches it; name an address of the server's machine"),
        ("http://169.254.169.254/v1", "link-local, metadata, multicast, reserved or wrapped addresses; name another"),
        ("http://192.0.2.1:8000/v1", "link-local, metadata, multicast, reserved or wrapped addresses; name another"),
    ],
)
def test_refused_address_error_has_cause_and_remedy(url: str, why: str) -> None:
    with pytest.raises(PolicyError, match=f"^{url.partition('[')[0]}.*{why}$") as caught:
        EndpointAccess().admit(url)
    assert not caught.value.retryable


def test_loopback_address_is_admitted() -> None:
    assert str(EndpointAccess().admit("http://127.0.0.1:8000/v1")) == "http://127.0.0.1:8000/v1"

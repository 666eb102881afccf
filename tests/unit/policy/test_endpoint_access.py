"""The cause and the remedy that a refused address of an endpoint has."""

import httpx
import pytest

from farm.policy.base import PolicyError
from farm.policy.checked_transport import CheckedTransport
from farm.policy.endpoint_access import EndpointAccess, EndpointRefusal
from farm.policy.openai_endpoint import OpenAIEndpoint


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


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
async def test_own_machine_is_refused_for_this_node_alone(host: str) -> None:
    """Another node may be allowed to ask the endpoint, so the episode is tried again there."""
    with pytest.raises(PolicyError, match="own machine") as caught:
        await OpenAIEndpoint(f"http://{host}:8000/v1", access=EndpointAccess(here=False)).models(bytes)
    assert caught.value.retryable


async def test_name_of_refused_address_is_refused_for_all_nodes() -> None:
    never = EndpointRefusal("no request goes there")
    async with httpx.AsyncClient(transport=CheckedTransport(lambda address: never, httpx.AsyncHTTPTransport())) as http:
        with pytest.raises(PolicyError, match=r"^localhost: no request goes there$") as caught:
            await http.get("http://localhost:8000/v1")
    assert not caught.value.retryable

"""The endpoints that a run may name, and the keys that are sent to them."""

from dataclasses import dataclass
from ipaddress import ip_address

from farm.core.endpoint_url import EndpointUrl
from farm.policy.base import PolicyError
from sandboxes.egress.addresses import Address, is_own, is_usable


@dataclass(frozen=True, slots=True)
class EndpointKey:
    """A key, and the address at or below which it is sent. The key is never shown."""

    url: EndpointUrl
    secret: str

    def __repr__(self) -> str:
        return f"EndpointKey({self.url})"


@dataclass(frozen=True, slots=True)
class EndpointRefusal:
    """Why no request may go to an address. ``only_here``: another node may be allowed to."""

    reason: str
    only_here: bool = False

    def error(self, name: str) -> PolicyError:
        """Return the error of an attempt. One that another node may avoid is retried there."""
        return PolicyError(f"{name}: {self.reason}", retryable=self.only_here)


_NO_CLIENT = EndpointRefusal(
    "a server listens at this address and no client reaches it; name an address of the server's machine"
)
_NEVER = EndpointRefusal(
    "endpoints are never at link-local, metadata, multicast, reserved or wrapped addresses; name another"
)
_OWN_MACHINE = EndpointRefusal(
    "it is on the farm's own machine; the operator allows that with policy_endpoints", only_here=True
)


@dataclass(frozen=True, slots=True)
class EndpointAccess:
    """The operator's rules for endpoints.

    ``listed``: the only endpoints that runs may name; empty: any. ``here``: whether an endpoint that is not listed may
    be on this machine. Link-local addresses, a cloud's metadata and the like are refused in any case.
    """

    listed: tuple[EndpointUrl, ...] = ()
    keys: tuple[EndpointKey, ...] = ()
    here: bool = True

    def admit(self, text: str) -> EndpointUrl:
        """Return the address that a run names. Raises PolicyError."""
        try:
            url = EndpointUrl.parse(text)
        except ValueError as error:
            raise PolicyError(f"the policy's endpoint has no usable address: {error}", retryable=False) from None
        if self.listed and not self._is_listed(url):
            raise PolicyError(
                f"{url} is not among the policy_endpoints of this farm; ask its operator to list it", retryable=False
            )
        try:
            address = ip_address(url.host)
        except ValueError:
            return url
        if refusal := self.refusal(url, address):
            raise refusal.error(str(url))
        return url

    def refusal(self, url: EndpointUrl, address: Address) -> EndpointRefusal | None:
        """Return why no request for ``url`` may go to ``address``, or None if it may."""
        if address.is_unspecified:
            return _NO_CLIENT
        if not is_usable(address):
            return _NEVER
        if not self.here and not self._is_listed(url) and is_own(address):
            return _OWN_MACHINE
        return None

    def key(self, url: EndpointUrl) -> str | None:
        """Return the key of the longest address that covers ``url``."""
        found = [key for key in self.keys if key.url.covers(url)]
        return max(found, key=lambda key: len(key.url.path)).secret if found else None

    def _is_listed(self, url: EndpointUrl) -> bool:
        return any(listed.covers(url) for listed in self.listed)

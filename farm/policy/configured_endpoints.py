"""The rules for endpoints from the configuration."""

from dataclasses import replace

from farm.config import LOOPBACK, Config, ConfigError, PolicyEndpoint
from farm.core.endpoint_url import EndpointUrl
from farm.policy.endpoint_access import EndpointAccess, EndpointKey


def endpoint_rules(config: Config, *, joined: bool = False) -> EndpointAccess:
    """Return the endpoints that runs may name, without keys.

    An endpoint on the farm's own machine must be listed, unless the gateway is on loopback of that machine: then only a
    user of the machine can name it. The gateway of a node that ``joined`` is elsewhere.
    """
    listed = tuple(EndpointUrl.parse(endpoint.url) for endpoint in config.policy_endpoints)
    return EndpointAccess(listed, here=config.host in LOOPBACK and not joined)


def endpoint_access(config: Config, *, joined: bool = False) -> EndpointAccess:
    """Return the rules with each key bound to its address. Raises ConfigError if a key is missing."""
    own = [(endpoint.url, key) for endpoint in config.policy_endpoints if (key := _own_key(endpoint))]
    shared = [(url, config.policy_key.get_secret_value()) for url in config.key_urls] if config.policy_key else []
    keys = tuple(EndpointKey(EndpointUrl.parse(url), _one_line(url, key)) for url, key in (*own, *shared))
    return replace(endpoint_rules(config, joined=joined), keys=keys)


def _own_key(endpoint: PolicyEndpoint) -> str | None:
    if endpoint.key_file is not None:
        try:
            return endpoint.key_file.read_text()
        except (OSError, ValueError) as error:
            raise ConfigError(f"key_file of {endpoint.url}: {error}; name a readable file") from None
    if endpoint.key is not None:
        return endpoint.key.get_secret_value()
    if endpoint.key_env is not None:
        raise ConfigError(f"key_env of {endpoint.url}: the variable {endpoint.key_env} is not set; set it to the key")
    return None


def _one_line(url: str, key: str) -> str:
    plain = key.strip()
    if not plain or not plain.isascii() or not plain.isprintable():
        raise ConfigError(f"the key of {url} is not one line of plain characters; write it again")
    return plain

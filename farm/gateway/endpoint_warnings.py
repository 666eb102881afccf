"""Endpoints that some nodes cannot reach or refuse: who makes a run or announces a policy is warned."""

import asyncio
import re
import socket
from collections.abc import Collection, Sequence
from ipaddress import ip_address

from farm.core.endpoint_url import EndpointUrl
from farm.policy.endpoint_access import EndpointAccess
from farm.scheduler.status import FarmStatus
from sandboxes.egress.addresses import Address

RESOLVE_S = 5.0

_NODE_ID = re.compile(r"(?P<host>[a-z0-9-]+)-[0-9a-f]{6}")
_REMEDY = "list the endpoint in the policy_endpoints of that machine"


async def addresses_of(url: EndpointUrl) -> list[Address]:
    """Return the addresses of an endpoint; none if its name is not known here."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(url.host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError):
        return []
    return [ip_address(str(place[0]).partition("%")[0]) for *_, place in found]


def warn_of_loopback(endpoint: str, status: FarmStatus) -> tuple[str, ...]:
    """Return a warning for a loopback address in a farm of several nodes."""
    if not endpoint or len(status.present) < 2 or not EndpointUrl.parse(endpoint).is_loopback:
        return ()
    return (
        f"{endpoint} is a loopback address, which is another machine on each of the {len(status.present)} nodes; "
        "name the endpoint by an address that all nodes reach",
    )


async def warn_of_endpoints(endpoints: Sequence[str], access: EndpointAccess, status: FarmStatus) -> tuple[str, ...]:
    """Return the warnings for the endpoints of a run or of a policy. ``access``: see ``warn_of_refusals``."""
    warnings: list[str] = []
    for endpoint in endpoints:
        warnings += warn_of_loopback(endpoint, status) or await warn_of_refusals(endpoint, access, status)
    return tuple(warnings)


async def warn_of_refusals(endpoint: str, access: EndpointAccess, status: FarmStatus) -> tuple[str, ...]:
    """Return warnings for an endpoint that a node refuses. ``access``: the rules of the gateway's machine."""
    url = EndpointUrl.parse(endpoint)
    nodes = [node.node_id for node in status.present]
    refusals = [access.refusal(url, address) for address in await addresses_of(url)]
    if refusals and all(refusal is not None and refusal.only_here for refusal in refusals):
        where = "the gateway's own machine, and the node there refuses it"
    elif named := _nodes_of(url.host, nodes):
        where = f"the machine of {', '.join(named)}, which refuses it unless its operator listed it"
    else:
        return ()
    then = "episodes that start there run again on another node" if len(nodes) > 1 else "no episode gets a reply"
    return (f"{url} is on {where}: {then}; {_REMEDY}",)


def _nodes_of(host: str, node_ids: Collection[str]) -> list[str]:
    """Return the nodes whose machine has the name ``host``. Their addresses are not known here."""
    if socket.gethostname().lower().partition(".")[0] == host:  # the gateway's own machine, judged by its addresses
        return []
    return [node_id for node_id in node_ids if (parts := _NODE_ID.fullmatch(node_id)) and parts["host"] == host]

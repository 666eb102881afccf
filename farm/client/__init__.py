"""The client of a farm's gateway, for learners and for the commands.

``client`` has ``FarmClient`` with a method for each route. ``http`` sends one request, repeats it while the gateway is
away, and turns a refusal into an error.

farm/docs/architecture/gateway.md explains it.
"""

from farm.client.client import (
    FarmClient,
    FarmError,
    GatewayUnavailable,
    Group,
    InvalidResponse,
    Lease,
    LeaseLost,
    Unreadable,
)

__all__ = [
    "FarmClient",
    "FarmError",
    "GatewayUnavailable",
    "Group",
    "InvalidResponse",
    "Lease",
    "LeaseLost",
    "Unreadable",
]

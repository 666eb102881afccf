"""The client of the farm's HTTP API, for learners and for the commands.

``client`` has ``FarmClient`` with a method for each route. ``http`` sends a request, retries it while the gateway is
away, and turns a refusal into an error. The pages are
farm/docs/learner.md and farm/docs/architecture/gateway.md.
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

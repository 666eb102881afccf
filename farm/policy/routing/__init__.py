"""The choice of an endpoint for each request of a policy.

This room decides which of a policy's endpoints an episode uses, when a failing endpoint gets no requests, and how long
requests wait while a policy is paused. Enter at ``PolicyRoutes``. The page is farm/docs/architecture/policy.md.
"""

from farm.policy.routing.directory import PolicyDirectory
from farm.policy.routing.endpoint_group import EndpointRoute, PolicyRoutes

__all__ = ["EndpointRoute", "PolicyDirectory", "PolicyRoutes"]

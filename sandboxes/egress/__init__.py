"""The only way out of a sandbox: a proxy on the host that reaches the hosts of an allow-list, and nothing else.

sandboxes/docs/egress.md explains it.
"""

from sandboxes.egress.allowlist import AllowList, Grants
from sandboxes.egress.connection import Bounds
from sandboxes.egress.listener import check_seen, listen_in, listen_inside, proxy_environment
from sandboxes.egress.log import EgressLog, EgressRecord, Verdict
from sandboxes.egress.proxy import EgressProxy
from sandboxes.egress.upstream import Upstreams

__all__ = [
    "AllowList",
    "Bounds",
    "EgressLog",
    "EgressProxy",
    "EgressRecord",
    "Grants",
    "Upstreams",
    "Verdict",
    "check_seen",
    "listen_in",
    "listen_inside",
    "proxy_environment",
]

"""The only way out of a sandbox: a proxy on the host that reaches the hosts of an allow-list, and nothing else."""

from sandboxes.egress.allowlist import AllowList, Grants
from sandboxes.egress.doorway import check_seen, listen_in, listen_inside, proxy_environment
from sandboxes.egress.exchange import Bounds
from sandboxes.egress.proxy import EgressProxy
from sandboxes.egress.record import EgressLog, EgressRecord, Verdict
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

"""Network egress of a sandbox: a proxy on the host that connects only to the hosts of an allow-list.

This room decides which connections a sandbox may make. Enter at ``EgressProxy``. The page is sandboxes/docs/egress.md.
"""

from sandboxes.egress.allowlist import AllowList, Grants
from sandboxes.egress.connection import ProxyLimits
from sandboxes.egress.listener import check_listening, listen_in, listen_inside, proxy_environment
from sandboxes.egress.log import EgressDecision, EgressLog, EgressRecord
from sandboxes.egress.proxy import EgressProxy
from sandboxes.egress.upstream import UpstreamProxies

__all__ = [
    "AllowList",
    "EgressDecision",
    "EgressLog",
    "EgressProxy",
    "EgressRecord",
    "Grants",
    "ProxyLimits",
    "UpstreamProxies",
    "check_listening",
    "listen_in",
    "listen_inside",
    "proxy_environment",
]

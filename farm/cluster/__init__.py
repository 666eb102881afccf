"""Many machines as one farm: starting, joining and stopping it, and Ray.

This room decides how the processes of a farm start, restart and end. Enter at ``launch`` to start or join a farm, and
at ``state_dir`` to ask what runs. This module imports no Ray, so that the question costs little;
``farm.cluster.launch`` does. The page is farm/docs/architecture/cluster.md.
"""

import os

from farm.cluster.errors import ClusterError
from farm.cluster.state_dir import (
    DrainState,
    FarmInfo,
    GatewayState,
    last_crash,
    last_joined,
    read_drain_state,
    read_gateway_state,
    record_crash,
    record_drain_state,
    record_gateway_state,
    recorded_crash,
    running_farm,
    stop_farm,
    sweep_farm,
)

os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # read by Ray at its import: no call may start another Ray

__all__ = [
    "ClusterError",
    "DrainState",
    "FarmInfo",
    "GatewayState",
    "last_crash",
    "last_joined",
    "read_drain_state",
    "read_gateway_state",
    "record_crash",
    "record_drain_state",
    "record_gateway_state",
    "recorded_crash",
    "running_farm",
    "stop_farm",
    "sweep_farm",
]

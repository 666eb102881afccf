"""Many machines as one farm: the scheduler, the node agents, and bringing them up and down.

Here stands what asks whether a farm runs, which must cost nothing; what starts one, and Ray with it, is imported from
``farm.cluster.launch``.

farm/docs/architecture/cluster.md explains it.
"""

from farm.cluster.errors import ClusterError
from farm.cluster.state_dir import (
    FarmInfo,
    GatewayState,
    last_crash,
    read_gateway_state,
    record_crash,
    record_gateway_state,
    recorded_crash,
    running_farm,
    stop_farm,
    sweep_farm,
)

__all__ = [
    "ClusterError",
    "FarmInfo",
    "GatewayState",
    "last_crash",
    "read_gateway_state",
    "record_crash",
    "record_gateway_state",
    "recorded_crash",
    "running_farm",
    "stop_farm",
    "sweep_farm",
]

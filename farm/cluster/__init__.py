"""Many machines as one farm: the scheduler, the node agents, and bringing them up and down.

Here stands what asks whether a farm runs, which must cost nothing; what starts one, and Ray with it, is imported from
``farm.cluster.launch``.
"""

from farm.cluster.errors import FarmError
from farm.cluster.state_dir import (
    FarmInfo,
    GatewayState,
    gateway_state,
    last_death,
    last_joined,
    note_death,
    note_gateway,
    noted_death,
    running_farm,
    stop_farm,
    sweep_farm,
)

__all__ = [
    "FarmError",
    "FarmInfo",
    "GatewayState",
    "gateway_state",
    "last_death",
    "last_joined",
    "note_death",
    "note_gateway",
    "noted_death",
    "running_farm",
    "stop_farm",
    "sweep_farm",
]

"""Many machines as one farm: the scheduler, the node agents, and bringing them up and down.

Ray is imported when a farm is started or joined, not before: asking what runs must not cost its second.
"""

from farm.cluster.agent import AgentSettings, NodeAgent
from farm.cluster.errors import FarmError
from farm.cluster.farm import RunningFarm, join_farm, start_farm
from farm.cluster.runfile import FarmInfo, running_farm, stop_farm, sweep_farm
from farm.cluster.shell import SchedulerShell

__all__ = [
    "AgentSettings",
    "FarmError",
    "FarmInfo",
    "NodeAgent",
    "RunningFarm",
    "SchedulerShell",
    "join_farm",
    "running_farm",
    "start_farm",
    "stop_farm",
    "sweep_farm",
]

"""The farm over HTTP: runs, leases and rollouts under ``/v1``.

farm/docs/architecture/gateway.md explains it.
"""

from farm.gateway.app import make_app
from farm.gateway.scheduler_port import SchedulerPort, SchedulerUnavailable
from farm.gateway.server import AddressTaken, listen, serving
from farm.gateway.tasksets import Prepare, TasksetError

__all__ = [
    "AddressTaken",
    "Prepare",
    "SchedulerPort",
    "SchedulerUnavailable",
    "TasksetError",
    "listen",
    "make_app",
    "serving",
]

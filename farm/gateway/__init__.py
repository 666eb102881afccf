"""The farm over HTTP: runs, leases and rollouts under ``/v1``.

farm/docs/architecture/gateway.md explains it.
"""

from farm.gateway.app import make_app
from farm.gateway.server import AddressTaken, listen, serving
from farm.gateway.tasksets import Prepare, TasksetError
from farm.scheduler.client import SchedulerClient, SchedulerUnavailable

__all__ = [
    "AddressTaken",
    "Prepare",
    "SchedulerClient",
    "SchedulerUnavailable",
    "TasksetError",
    "listen",
    "make_app",
    "serving",
]

"""The farm's HTTP API: runs, leases, rollouts, rewards and nodes under ``/v1``.

This room decides who may call what, and how answers and errors look. Enter at ``make_app``; the routes are in
``routes/``. The pages are farm/docs/http-api.md and farm/docs/architecture/gateway.md.
"""

from farm.gateway.app import make_app
from farm.gateway.server import listen, serving
from farm.gateway.tasksets import Prepare, TasksetError
from farm.scheduler.client import SchedulerClient, SchedulerUnavailable

__all__ = [
    "Prepare",
    "SchedulerClient",
    "SchedulerUnavailable",
    "TasksetError",
    "listen",
    "make_app",
    "serving",
]

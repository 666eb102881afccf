"""The scheduler as the gateway sees it; whoever runs the scheduler provides one, and the gateway imports no Ray."""

from typing import Protocol

from farm.core.run import RunSpec
from farm.scheduler.status import FarmStatus


class SchedulerUnavailable(Exception):
    """The scheduler does not answer; one line that names the remedy."""


class SchedulerClient(Protocol):
    """Every method may raise SchedulerUnavailable, or any exception of its transport, which is taken as the same.

    The run is in the store before ``submit`` is called, and its new state before ``pause``, ``resume`` and
    ``cancel`` are: a scheduler that was away catches up from there. Unknown runs are no error.
    """

    async def submit(self, spec: RunSpec) -> None: ...

    async def pause(self, run_id: str) -> None: ...

    async def resume(self, run_id: str) -> None: ...

    async def cancel(self, run_id: str) -> None: ...

    async def drain_node(self, node_id: str, drain: bool) -> bool:
        """Give a node no more episodes, or, without ``drain``, some again. Return False if there is no such node."""
        ...

    async def status(self) -> FarmStatus: ...

    async def metrics(self) -> bytes:
        """Prometheus text format."""
        ...

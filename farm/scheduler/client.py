"""The interface through which the gateway reaches the scheduler. It is independent of Ray."""

from typing import Protocol

from farm.scheduler.status import FarmStatus


class SchedulerUnavailable(Exception):
    """Raised if the scheduler does not answer. The message is one line that names the remedy."""


class SchedulerClient(Protocol):
    """Calls to the one scheduler of a farm.

    Every method may raise SchedulerUnavailable or an exception of its transport; callers treat both alike. The caller
    writes a run to the store before ``submit``, and a run's new state before ``pause``, ``resume`` and ``cancel``, so
    that a scheduler that was away reads them there later. Calls for unknown runs have no effect.
    """

    async def submit(self, run_id: str) -> None: ...

    async def pause(self, run_id: str) -> None: ...

    async def resume(self, run_id: str) -> None: ...

    async def cancel(self, run_id: str) -> None: ...

    async def drain_node(self, node_id: str, drain: bool) -> bool:
        """Stop giving episodes to a node, or, if ``drain`` is false, start again. Return False for an unknown node."""
        ...

    async def status(self) -> FarmStatus: ...

    async def metrics(self) -> bytes:
        """Return the farm's metrics in the text format of Prometheus."""
        ...

"""The interface through which the gateway reaches the scheduler. It is independent of Ray."""

from typing import Protocol

from farm.core.run import TaskRef
from farm.scheduler.status import FarmStatus, SandboxPlacement


class SchedulerUnavailable(Exception):
    """Raised if the scheduler does not answer. The message is one line that names the remedy."""


NO_ANSWER = (
    "the scheduler does not answer; it starts again by itself if its process has ended; if it hangs, end its process "
    "(ray::SchedulerActor) with `kill -9`; its log is scheduler.log in the log directory of the head"
)


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

    async def place_sandbox(self, sandbox_id: str, task: TaskRef, wait_s: float, node_id: str = "") -> SandboxPlacement:
        """Hold a slot for a learner sandbox, of ``node_id`` if it is not empty. Wait for one up to ``wait_s``."""
        ...

    async def release_sandbox(self, sandbox_id: str) -> None:
        """Free the slot of a learner sandbox that did not start."""
        ...

    async def status(self) -> FarmStatus: ...

    async def metrics(self) -> bytes:
        """Return the farm's metrics in the text format of Prometheus."""
        ...


class NodeMetricsUnavailable(Exception):
    """Raised if the agent of a node does not answer. The message is one line that says why."""


class NodeMetricsSource(Protocol):
    """Reads the metrics of node agents. It is independent of Ray."""

    async def read(self, node_id: str) -> bytes:
        """Return the metrics of a node in the text format of Prometheus. Raises NodeMetricsUnavailable."""
        ...

"""One learner sandbox on its node: its owner task, its calls, and the rest of its life."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from farm.learner_sandboxes.errors import RefusalKind, SandboxRefused
from farm.learner_sandboxes.grading import GradedTask
from farm.learner_sandboxes.lifetime import IDLE_S, LIFE_S, Lifetime
from farm.learner_sandboxes.messages import Answered, CreateSandbox, Remaining, SandboxState
from farm.tasks import TaskBundle
from sandboxes.cancellation import cancel_all
from sandboxes.errors import SandboxGone
from sandboxes.interface import Sandbox
from sandboxes.standstill import Participant
from sandboxes.tools import Toolset

MOST_KEPT_RESULTS = 32
"""Results that a sandbox keeps for repeated calls. The largest one has about half a MiB."""

MOST_RUNNING_CALLS = 8
"""Calls of a sandbox at the same time: as many as an episode runs side by side."""

Result = TypeVar("Result")
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Workplace:
    """A started sandbox. ``graded`` is None if it was not made from a task.

    Each call needs a block of ``participant``.
    """

    sandbox: Sandbox
    toolset: Toolset
    graded: GradedTask | None
    participant: Participant

    @property
    def bundle(self) -> TaskBundle | None:
        return self.graded.bundle if self.graded else None


class LiveSandbox:
    """A sandbox from its order to its removal.

    ``owner`` starts it, waits until it has to end, and removes it. ``answer``: the arguments of the last call of the
    ``answer`` tool. ``lost``: the error that said that the sandbox is gone.
    """

    def __init__(self, order: CreateSandbox, node_id: str, clock: Clock) -> None:
        self.order = order
        self.lifetime = Lifetime.begin(clock(), idle_s=order.idle_s or IDLE_S, timeout_s=order.timeout_s or LIFE_S)
        self.lifetime.call_began(clock())  # the start does not count as idle
        self.owner: asyncio.Task[None] | None = None
        self.why_ended = ""
        self.answer: str | None = None
        self.lost: SandboxGone | None = None
        self._node_id = node_id
        self._clock = clock
        self._created_at = time.time()
        self._ready: asyncio.Future[Workplace] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._kept: OrderedDict[str, asyncio.Task[Any]] = OrderedDict()

    # Its life

    async def place(self) -> Workplace:
        """Return the workplace when it is ready. Raises SandboxRefused, and the error of a failed start."""
        await asyncio.wait({self._ready})
        if self._ready.cancelled():
            raise self.gone()
        return self._ready.result()

    def is_ready(self) -> bool:
        return self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None

    async def serve(self, place: Workplace) -> None:
        """Take calls until the sandbox has to end, then end those that still run."""
        self.lifetime.call_ended(self._clock())
        if not self._ready.done():
            self._ready.set_result(place)
        await self._ended.wait()
        await cancel_all(self._calls)

    def fail(self, error: Exception) -> None:
        """Note that the sandbox did not start."""
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # mark as retrieved: the caller may have left

    def end(self, why: str) -> None:
        """Have the owner remove the sandbox. ``why`` continues the sentence "the sandbox …"."""
        if self.why_ended:
            return
        self.why_ended = why
        self._ended.set()
        if not self._ready.done():
            self._ready.cancel()
            if self.owner is not None:
                self.owner.cancel()

    def gone(self) -> SandboxRefused:
        return SandboxRefused(RefusalKind.GONE, f"the sandbox {self.order.sandbox_id} {self.why_ended}")

    def remaining(self) -> Remaining:
        now = self._clock()
        left_s = self.lifetime.expires_at(now) - now
        return Remaining(time.time() + left_s, self.lifetime.warning(now))

    async def state(self) -> SandboxState:
        place = await self.place()
        bundle = place.bundle
        return SandboxState(
            self.order.sandbox_id,
            self._node_id,
            task_id=bundle.task.id if bundle else "",
            image=place.sandbox.spec.image,
            workdir=place.sandbox.workdir,
            tools=_schemas(place.toolset),
            instruction=bundle.task.instruction if bundle else "",
            created_at=self._created_at,
            fork_of=self.order.fork_of,
            remaining=self.remaining(),
        )

    # Its calls

    async def call(self, key: str, work: Callable[[Workplace], Awaitable[Result]]) -> Answered[Result]:
        """Run ``work``, or return the result of the earlier call with the same ``key``.

        The work goes on if the caller leaves, so that a repeated call finds its result. Raises SandboxRefused if the
        sandbox ends first, or if too many calls run.
        """
        place = await self.place()
        task: asyncio.Task[Result] | None = self._kept.get(key)
        if task is None:
            self._check_free()
            task = self._start(key or secrets.token_hex(8), work(place), kept=bool(key))
        await asyncio.wait({task})
        if task.cancelled():
            raise self.gone()
        return Answered(task.result(), self.remaining())

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the sandbox from idling."""
        self.lifetime.call_began(self._clock())
        try:
            yield
        finally:
            self.lifetime.call_ended(self._clock())

    def _check_free(self) -> None:
        if self.why_ended:
            raise self.gone()
        if len(self._calls) >= MOST_RUNNING_CALLS:
            detail = (
                f"the sandbox {self.order.sandbox_id} runs {MOST_RUNNING_CALLS} calls; repeat the call when one ends"
            )
            raise SandboxRefused(RefusalKind.BUSY, detail)

    def _start(self, key: str, work: Awaitable[Result], *, kept: bool) -> asyncio.Task[Result]:
        task = asyncio.ensure_future(self._counted(work))
        self._calls.add(task)
        if kept:
            self._kept[key] = task
        task.add_done_callback(lambda ended: self._call_ended(key, ended))
        return task

    async def _counted(self, work: Awaitable[Result]) -> Result:
        with self.in_use():
            try:
                return await work
            except SandboxGone as error:
                self.lost = error
                raise

    def _call_ended(self, key: str, task: asyncio.Task[Any]) -> None:
        self._calls.discard(task)
        if task.cancelled() or task.exception() is not None:  # a repeated call tries again
            self._kept.pop(key, None)
        ended = [key for key, kept in self._kept.items() if kept.done()]
        for old in ended[: max(0, len(ended) - MOST_KEPT_RESULTS)]:
            del self._kept[old]


def _schemas(toolset: Toolset) -> tuple[Mapping[str, Any], ...]:
    return tuple(toolset.schemas())

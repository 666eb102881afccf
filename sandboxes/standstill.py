"""Let the sandboxes of one group stand still while something runs that they must not observe.

Counters of the kernel and the speed of the machine tell a sandbox what another one does, and no filter hides all of
them. A sandbox that stands still learns nothing. Calls that are in progress end first, so no time limit of a call runs
while its sandbox stands still.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from weakref import WeakValueDictionary

from sandboxes.cancellation import shielded
from sandboxes.errors import SandboxError, SandboxGone
from sandboxes.interface import Sandbox

log = logging.getLogger(__name__)


class Standstill:
    """The groups of one process, by name. A group exists while it has a participant or a block of ``hold``.

    ``is_on``: if False, nothing stands still, and blocks wait only for a slot.
    """

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._groups: WeakValueDictionary[str, _Group] = WeakValueDictionary()

    def participant(self, group: str) -> "Participant":
        """Return a participant of ``group`` that has no sandbox yet."""
        return Participant(self._group(group))

    @asynccontextmanager
    async def hold(self, group: str, slots: asyncio.Semaphore | None = None) -> AsyncIterator[None]:
        """Let every participant of ``group`` stand still during the block. Blocks of one group run one at a time.

        Waits for a slot of ``slots``, if there are any, and then until the calls in progress of the participants have
        ended. Between two blocks each participant that waits can begin a call. A sandbox that cannot be frozen is
        logged and goes on.
        """
        if not self._is_on:
            async with slots or nullcontext():
                yield
            return
        held = self._group(group)
        async with held.turn, slots or nullcontext():
            held.is_open.clear()
            participants = tuple(held.participants)
            try:
                await asyncio.gather(*(participant.stop() for participant in participants))
                yield
            finally:
                await shielded(_thaw(participants))
                held.is_open.set()  # before the next block has its turn, so that waiting calls begin before it

    def _group(self, name: str) -> "_Group":
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group()
        return group


class _Group:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.participants: set[Participant] = set()


class Participant:
    """A sandbox that stands still with its group, from ``enter`` to ``leave``.

    Each call on the sandbox needs a block of ``call``. A call that has no time limit of its own may do without one: it
    is interrupted by each standstill, whose seconds are in ``still_s``.
    """

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._sandbox: Sandbox | None = None
        self._calls = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._freezing = asyncio.Lock()
        self._waiting = _Stopwatch()
        self._still = _Stopwatch()

    @property
    def waited_s(self) -> float:
        """Seconds for which at least one call has waited, so far."""
        return self._waiting.seconds

    @property
    def still_s(self) -> float:
        """Seconds for which the sandbox has stood still, so far."""
        return self._still.seconds

    async def enter(self, sandbox: Sandbox) -> None:
        """Join the group with ``sandbox``. Return when the group does not stand still."""
        self._sandbox = sandbox
        self._group.participants.add(self)
        if self._group.is_open.is_set():
            return
        try:
            await self.stop()
            await self._opened()
        finally:
            if self._group.is_open.is_set():  # else the next block thaws the sandbox
                await shielded(self.thaw())

    def leave(self) -> None:
        """Leave the group. A running standstill ends as for the others."""
        self._group.participants.discard(self)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Make a call in the block, which begins when the sandbox does not stand still. Blocks may run in parallel."""
        if not self._group.is_open.is_set():
            with self._waiting.running():
                await self._opened()
        self._calls += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._is_idle.set()

    async def stop(self) -> None:
        """Freeze the sandbox when its calls have ended. A sandbox that is gone needs no freezing."""
        assert self._sandbox is not None
        async with self._freezing:
            await self._is_idle.wait()
            if self._still.is_running:
                return
            self._still.start()
            try:
                await self._sandbox.freeze()
            except SandboxGone:
                return
            except SandboxError as error:
                log.warning(
                    "sandbox %s does not stand still, so what runs in it may observe the tests of its task: %s",
                    self._sandbox.id,
                    error,
                )

    async def thaw(self) -> None:
        """End the standstill of the sandbox, if there is one."""
        async with self._freezing:
            if not self._still.is_running:
                return
            assert self._sandbox is not None
            try:
                await self._sandbox.thaw()
            except SandboxError as error:
                log.error("sandbox %s cannot be thawed; its calls will time out: %s", self._sandbox.id, error)
            finally:
                self._still.stop()

    async def _opened(self) -> None:
        while not self._group.is_open.is_set():
            await self._group.is_open.wait()


async def _thaw(participants: tuple[Participant, ...]) -> None:
    await asyncio.gather(*(participant.thaw() for participant in participants))


class _Stopwatch:
    """Seconds with at least one running block."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._blocks = 0
        self._began = 0.0

    @property
    def seconds(self) -> float:
        return self._sum + (time.monotonic() - self._began if self._blocks else 0.0)

    @property
    def is_running(self) -> bool:
        return self._blocks > 0

    def start(self) -> None:
        if not self._blocks:
            self._began = time.monotonic()
        self._blocks += 1

    def stop(self) -> None:
        self._blocks -= 1
        if not self._blocks:
            self._sum += time.monotonic() - self._began

    def running(self) -> "_Running":
        return _Running(self)


class _Running:
    def __init__(self, watch: _Stopwatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.start()

    def __exit__(self, *error: object) -> None:
        self._watch.stop()

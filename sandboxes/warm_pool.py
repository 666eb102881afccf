"""Warm pools: started sandboxes that nobody holds, so that whoever asks for one of their kind need not wait for a boot.

Of a kind are those whose specs differ in nothing but their labels, and whose image has the digest that its name means
now. What is kept follows what is wanted: one is booted for each that is handed out, those too many go after a while,
and all go at once where the machine is short of memory or disk. Nothing has ever run in a pooled sandbox but its tool
server and the shell that its first command will run in, so one that is handed out is as fresh as one just booted.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from sandboxes.cancellation import shielded
from sandboxes.errors import SandboxError
from sandboxes.host.pressure import read_pressure
from sandboxes.interface import Runtime, Sandbox
from sandboxes.snapshot import Snapshot
from sandboxes.spec import SandboxSpec, check_spec

CHECK_S = 1.0
"""So long a create may spend on what is pooled; then it boots."""

SHELL_S = 10.0

SPARE_S = 10.0
"""So long more are kept than are wanted: wants come and go, and one just given up is often wanted again."""

LOOK_S = 1.0
CALM_S = 10.0
"""So long nothing is pooled after the machine was short of something."""

RETRY_S, LONGEST_RETRY_S = 1.0, 60.0

log = logging.getLogger(__name__)

Short = Callable[[], str]
"""What the machine is short of, for people; empty where it has enough."""


def short_of_memory() -> str:
    return "memory is short" if read_pressure().short_of_memory else ""


@dataclass(slots=True)
class _SpecPool:
    """Those of one kind, the oldest first. ``retry_at``: no boot before that, for the last ``failures`` have failed."""

    spec: SandboxSpec
    wanted: int = 0
    ready: deque[Sandbox] = field(default_factory=deque)
    spare_since: float | None = None
    failures: int = 0
    retry_at: float = 0.0

    def lacks(self, now: float) -> int:
        return self.wanted - len(self.ready) if now >= self.retry_at else 0

    def spare(self, now: float) -> int:
        """How many have been too many for long enough."""
        if len(self.ready) <= self.wanted:
            self.spare_since = None
            return 0
        if self.spare_since is None:
            self.spare_since = now
        return len(self.ready) - self.wanted if now - self.spare_since >= SPARE_S else 0

    def failed(self, now: float) -> None:
        self.retry_at = now + min(RETRY_S * 2**self.failures, LONGEST_RETRY_S)
        self.failures += 1


class WarmPool:
    """A runtime over ``runtime``, which it owns. As long as nothing is wanted it does nothing of its own.

    Pooled sandboxes are booted one at a time, so that whoever has to wait for a boot waits for one of ours at most.
    """

    def __init__(
        self, runtime: Runtime, *, short: Short = short_of_memory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._runtime = runtime
        self._short = short
        self._clock = clock
        self._stocks: dict[str, _SpecPool] = {}
        self._calm_at = 0.0
        self._news = asyncio.Event()
        self._tender: asyncio.Task[None] | None = None
        self._filling = asyncio.Lock()
        self._going: set[str] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self._closed = False
        self.handed_out = 0
        """How many creates were answered without a boot."""

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def degraded(self) -> tuple[str, ...]:
        return self._runtime.degraded

    @contextmanager
    def reserve(self, spec: SandboxSpec, count: int = 1) -> Iterator[None]:
        """As long as this lasts, ``count`` more sandboxes of ``spec`` are kept ready. Raises SpecError.

        One that cannot be booted is tried again, ever more rarely; whoever creates it hears why.
        """
        check_spec(spec)
        key = _kind(spec)
        stock = self._stocks.setdefault(key, _SpecPool(replace(spec, labels={})))
        stock.wanted += count
        self._wake()
        try:
            yield
        finally:
            stock.wanted -= count
            self._wake()

    def ready(self, spec: SandboxSpec) -> int:
        stock = self._stocks.get(_kind(spec))
        return len(stock.ready) if stock else 0

    async def create(self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0) -> Sandbox:
        """One with files of its own is booted."""
        check_spec(spec)
        sandbox = None if base else await self._take(spec, min(CHECK_S, boot_timeout_s))
        if sandbox is None:
            sandbox = await self._runtime.create(spec, base=base, boot_timeout_s=boot_timeout_s)
        return sandbox

    @asynccontextmanager
    async def scope(
        self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0
    ) -> AsyncIterator[Sandbox]:
        sandbox = await self.create(spec, base=base, boot_timeout_s=boot_timeout_s)
        try:
            yield sandbox
        finally:
            await sandbox.remove()

    async def digest_of(self, image: str) -> str:
        return await self._runtime.digest_of(image)

    async def living(self) -> AsyncIterator[str]:
        """Those that somebody holds: none that is pooled, or was and goes."""
        async with self._filling:  # what boots for the pool has no name yet
            here = [sandbox_id async for sandbox_id in self._runtime.living()]
            ours = {sandbox.id for stock in self._stocks.values() for sandbox in stock.ready} | self._going
        for sandbox_id in here:
            if sandbox_id not in ours:
                yield sandbox_id

    async def release_images(self) -> None:
        """What is pooled holds its image: it goes, and its like is not booted again for some time."""
        self._yield_room("images are to be removed")
        await asyncio.gather(*self._removals)
        await self._runtime.release_images()

    async def adopt(self) -> list[Sandbox]:
        """Also what a pool that died had ready, which nobody can tell from the rest."""
        return await self._runtime.adopt()

    async def reap(self) -> int:
        return await self._runtime.reap()

    async def close(self) -> None:
        await shielded(self._close())

    async def _close(self) -> None:
        self._closed = True
        if self._tender is not None:
            self._tender.cancel()
            await asyncio.gather(self._tender, return_exceptions=True)
        self._stocks.clear()
        await asyncio.gather(*self._removals)
        await self._runtime.close()

    # Out of the pool

    async def _take(self, spec: SandboxSpec, within_s: float) -> Sandbox | None:
        """One that is ready, of the very kind, and answers; None where there is none."""
        stock = self._stocks.get(_kind(spec))
        if stock is None or not stock.ready:
            return None
        try:
            async with asyncio.timeout(within_s):
                digest = await self._runtime.digest_of(spec.image)
                while stock.ready:
                    sandbox = stock.ready.popleft()
                    if await self._hand_over(sandbox, spec, digest):
                        self.handed_out += 1
                        return sandbox
        except (TimeoutError, SandboxError):
            pass  # a boot will say what is wrong
        finally:
            self._wake()  # no sooner: the boot that replaces it would delay it
        return None

    async def _hand_over(self, sandbox: Sandbox, spec: SandboxSpec, digest: str) -> bool:
        """Whether it could be; if not, or if that is not to be known, it goes."""
        done = False
        try:
            if sandbox.image_digest == digest:
                await sandbox.ping()
                sandbox.assign(spec)
                done = True
        except (SandboxError, OSError) as error:
            log.warning("a pooled sandbox was of no use: %s", error)
        finally:
            if not done:
                self._discard(sandbox)
        return done

    # Into the pool

    def _wake(self) -> None:
        self._news.set()
        if not self._closed and (self._tender is None or self._tender.done()):
            self._tender = asyncio.create_task(self._tend())

    async def _tend(self) -> None:
        """Boot what is lacking and remove what is too much, until nothing is wanted and nothing is left."""
        looked_at = -math.inf
        while self._stocks:
            self._news.clear()
            now = self._clock()
            if now - looked_at >= LOOK_S:
                looked_at = now
                if why := self._short():
                    self._yield_room(why)
            self._shrink(now)
            stock = max(self._stocks.values(), key=lambda stock: stock.lacks(now), default=None)
            if stock is not None and stock.lacks(now) > 0 and now >= self._calm_at:
                await self._fill(stock)
            elif self._stocks:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._news.wait()

    def _yield_room(self, why: str) -> None:
        now = self._clock()
        if now >= self._calm_at and self._stocks:
            log.warning("no sandboxes are kept ready for now: %s", why)
        self._calm_at = now + CALM_S
        for stock in self._stocks.values():
            self._drop(stock, len(stock.ready))

    def _shrink(self, now: float) -> None:
        for key, stock in list(self._stocks.items()):
            self._drop(stock, stock.spare(now))
            if not stock.wanted and not stock.ready:
                del self._stocks[key]

    async def _fill(self, stock: _SpecPool) -> None:
        async with self._filling:
            try:
                sandbox = await self._boot(stock.spec)
            except Exception as error:  # whoever needs the sandbox meets the same, and decides; here it is tried again
                stock.failed(self._clock())
                log.warning("no sandbox of %s is kept ready: %s", stock.spec.image, error)
                return
            stock.failures = 0
            if self._clock() < self._calm_at:
                self._discard(sandbox)
            else:
                stock.ready.append(sandbox)

    async def _boot(self, spec: SandboxSpec) -> Sandbox:
        """With its shell begun, which takes longer than all else in a first call."""
        sandbox = await self._runtime.create(spec)
        try:
            await sandbox.shell(":", timeout_s=SHELL_S)
        except BaseException:
            await shielded(sandbox.remove())
            raise
        return sandbox

    def _drop(self, stock: _SpecPool, count: int) -> None:
        for _ in range(count):
            self._discard(stock.ready.popleft())

    def _discard(self, sandbox: Sandbox) -> None:
        self._going.add(sandbox.id)
        removal = asyncio.create_task(self._remove(sandbox))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.remove()
        except Exception as error:  # nobody waits for it, and the reaper takes what stays
            log.warning("sandbox %s stays for the reaper: %s", sandbox.id, error)
        self._going.discard(sandbox.id)


def _kind(spec: SandboxSpec) -> str:
    """All of a spec but its labels, also what specs may come to hold one day."""
    return repr(replace(spec, labels={}, env=dict(sorted(spec.env.items()))))

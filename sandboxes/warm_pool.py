"""Warm pools: started, unassigned sandboxes, so that a create of an equal spec need not wait for a boot.

Two specs are equal if they differ only in their labels. A pooled sandbox is used if its image still has the digest that
the image's name points to. The pool follows the reservations: it boots a sandbox for each one handed out, removes
surplus ones after a delay, and removes all if the machine is short of memory or disk. In a pooled sandbox only the tool
server and an idle shell have run, so it is as clean as a new one.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from sandboxes.cancellation import shielded
from sandboxes.errors import SandboxError
from sandboxes.host.pressure import read_pressure
from sandboxes.interface import Runtime, Sandbox, sandbox_scope
from sandboxes.snapshot import Snapshot
from sandboxes.spec import SandboxSpec, check_spec

CHECK_S = 1.0
"""Maximum time that a create spends on checking pooled sandboxes before it boots one."""

SHELL_S = 10.0

SURPLUS_S = 10.0
"""Surplus sandboxes are kept for this time, because a reservation that ended is often made again."""

SHORTAGE_CHECK_S = 1.0
PAUSE_S = 10.0
"""The pool stays empty for this time after a shortage."""

RETRY_S, MAX_RETRY_S = 1.0, 60.0

log = logging.getLogger(__name__)

ShortageCheck = Callable[[], str]
"""Describe the resource that the machine is short of. Empty: none."""


def short_of_memory() -> str:
    return "memory is short" if read_pressure().short_of_memory else ""


@dataclass(slots=True)
class _SpecPool:
    """Pooled sandboxes of one spec, oldest first. ``retry_at``: no boot before it, after ``failures`` in a row."""

    spec: SandboxSpec
    wanted: int = 0
    ready: deque[Sandbox] = field(default_factory=deque)
    surplus_since: float | None = None
    failures: int = 0
    retry_at: float = 0.0

    def missing(self, now: float) -> int:
        return self.wanted - len(self.ready) if now >= self.retry_at else 0

    def surplus(self, now: float) -> int:
        """Count the sandboxes that have been surplus for at least ``SURPLUS_S``."""
        if len(self.ready) <= self.wanted:
            self.surplus_since = None
            return 0
        if self.surplus_since is None:
            self.surplus_since = now
        return len(self.ready) - self.wanted if now - self.surplus_since >= SURPLUS_S else 0

    def record_failure(self, now: float) -> None:
        self.retry_at = now + min(RETRY_S * 2**self.failures, MAX_RETRY_S)
        self.failures += 1


class WarmPool:
    """A runtime that pools the sandboxes of ``runtime``, which it owns. It is idle without reservations.

    Pooled sandboxes boot one at a time, so that other boots wait for at most one of them.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        shortage: ShortageCheck = short_of_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._shortage = shortage
        self._clock = clock
        self._pools: dict[str, _SpecPool] = {}
        self._paused_until = 0.0
        self._changed = asyncio.Event()
        self._fill_task: asyncio.Task[None] | None = None
        self._filling = asyncio.Lock()
        self._being_removed: set[str] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self._closed = False
        self.handed_out = 0
        """Number of creates that needed no boot."""

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def degraded(self) -> tuple[str, ...]:
        return self._runtime.degraded

    @contextmanager
    def reserve(self, spec: SandboxSpec, count: int = 1) -> Iterator[None]:
        """Keep ``count`` more sandboxes of ``spec`` ready inside the block. Raises SpecError.

        Failed boots are retried with backoff; a ``create`` of the same spec raises the cause.
        """
        check_spec(spec)
        key = _pool_key(spec)
        pool = self._pools.setdefault(key, _SpecPool(replace(spec, labels={})))
        pool.wanted += count
        self._wake()
        try:
            yield
        finally:
            pool.wanted -= count
            self._wake()

    def ready(self, spec: SandboxSpec) -> int:
        pool = self._pools.get(_pool_key(spec))
        return len(pool.ready) if pool else 0

    @property
    def fill(self) -> tuple[int, int]:
        """The numbers of pooled sandboxes and of reservations."""
        pools = self._pools.values()
        return sum(len(pool.ready) for pool in pools), sum(pool.wanted for pool in pools)

    async def create(self, spec: SandboxSpec, *, base: Snapshot | None = None, boot_timeout_s: float = 60.0) -> Sandbox:
        """Take a pooled sandbox, or boot one. With ``base`` a sandbox is always booted."""
        check_spec(spec)
        sandbox = None if base else await self._take(spec, min(CHECK_S, boot_timeout_s))
        if sandbox is None:
            sandbox = await self._runtime.create(spec, base=base, boot_timeout_s=boot_timeout_s)
        return sandbox

    scope = sandbox_scope

    async def digest_of(self, image: str) -> str:
        return await self._runtime.digest_of(image)

    async def living(self) -> AsyncIterator[str]:
        """Yield the ids of assigned sandboxes: none that is pooled or is being removed from the pool."""
        async with self._filling:  # a sandbox that boots for the pool has no id here yet
            here = [sandbox_id async for sandbox_id in self._runtime.living()]
            pooled = {sandbox.id for pool in self._pools.values() for sandbox in pool.ready} | self._being_removed
        for sandbox_id in here:
            if sandbox_id not in pooled:
                yield sandbox_id

    async def release_images(self) -> None:
        """Remove pooled sandboxes, which hold their images, and pause the pool for ``PAUSE_S``."""
        self._pause("images are to be removed")
        await asyncio.gather(*self._removals)
        await self._runtime.release_images()

    async def adopt(self) -> list[Sandbox]:
        """Adopt all sandboxes of a dead process, including those of its pool: their records do not differ."""
        return await self._runtime.adopt()

    async def reap(self) -> int:
        return await self._runtime.reap()

    async def close(self) -> None:
        await shielded(self._close())

    async def _close(self) -> None:
        self._closed = True
        if self._fill_task is not None:
            self._fill_task.cancel()
            await asyncio.gather(self._fill_task, return_exceptions=True)
        self._pools.clear()
        await asyncio.gather(*self._removals)
        await self._runtime.close()

    # Take from the pool

    async def _take(self, spec: SandboxSpec, timeout_s: float) -> Sandbox | None:
        """Return a pooled sandbox of an equal spec that answers, or None."""
        pool = self._pools.get(_pool_key(spec))
        if pool is None or not pool.ready:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                digest = await self._runtime.digest_of(spec.image)
                while pool.ready:
                    sandbox = pool.ready.popleft()
                    if await self._try_assign(sandbox, spec, digest):
                        self.handed_out += 1
                        return sandbox
        except (TimeoutError, SandboxError):
            pass  # the boot that follows raises the cause
        finally:
            self._wake()  # only now: the boot of a replacement would delay this sandbox
        return None

    async def _try_assign(self, sandbox: Sandbox, spec: SandboxSpec, digest: str) -> bool:
        """Ping ``sandbox`` and assign ``spec`` to it. Return False if that fails; then it is removed."""
        assigned = False
        try:
            if sandbox.image_digest == digest:
                await sandbox.ping()
                sandbox.assign(spec)
                assigned = True
        except (SandboxError, OSError) as error:
            log.warning("pooled sandbox %s is unusable and is removed: %s", sandbox.id, error)
        finally:
            if not assigned:
                self._discard(sandbox)
        return assigned

    # Fill the pool

    def _wake(self) -> None:
        self._changed.set()
        if not self._closed and (self._fill_task is None or self._fill_task.done()):
            self._fill_task = asyncio.create_task(self._maintain())

    async def _maintain(self) -> None:
        """Boot missing sandboxes and remove surplus ones, until there are no reservations and no sandboxes."""
        checked_at = -math.inf
        while self._pools:
            self._changed.clear()
            now = self._clock()
            if now - checked_at >= SHORTAGE_CHECK_S:
                checked_at = now
                if why := self._shortage():
                    self._pause(why)
            self._shrink(now)
            pool = max(self._pools.values(), key=lambda pool: pool.missing(now), default=None)
            if pool is not None and pool.missing(now) > 0 and now >= self._paused_until:
                await self._fill(pool)
            elif self._pools:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SHORTAGE_CHECK_S):
                        await self._changed.wait()

    def _pause(self, why: str) -> None:
        now = self._clock()
        if now >= self._paused_until and self._pools:
            log.warning("the warm pool is paused for %g s and emptied: %s", PAUSE_S, why)
        self._paused_until = now + PAUSE_S
        for pool in self._pools.values():
            self._drop(pool, len(pool.ready))

    def _shrink(self, now: float) -> None:
        for key, pool in list(self._pools.items()):
            self._drop(pool, pool.surplus(now))
            if not pool.wanted and not pool.ready:
                del self._pools[key]

    async def _fill(self, pool: _SpecPool) -> None:
        async with self._filling:
            try:
                sandbox = await self._boot(pool.spec)
            except Exception as error:  # a create of this spec raises the same error; here the boot is retried
                pool.record_failure(self._clock())
                log.warning("the warm pool cannot boot a sandbox of %s; it retries later: %s", pool.spec.image, error)
                return
            pool.failures = 0
            if self._clock() < self._paused_until:
                self._discard(sandbox)
            else:
                pool.ready.append(sandbox)

    async def _boot(self, spec: SandboxSpec) -> Sandbox:
        """Boot a sandbox and start its shell, which is the slowest part of a first call."""
        sandbox = await self._runtime.create(spec)
        try:
            await sandbox.shell(":", timeout_s=SHELL_S)
        except BaseException:
            await shielded(sandbox.remove())
            raise
        return sandbox

    def _drop(self, pool: _SpecPool, count: int) -> None:
        for _ in range(count):
            self._discard(pool.ready.popleft())

    def _discard(self, sandbox: Sandbox) -> None:
        self._being_removed.add(sandbox.id)
        removal = asyncio.create_task(self._remove(sandbox))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.remove()
        except Exception as error:  # no caller waits for this task, and the reaper removes what stays
            log.warning("pooled sandbox %s was not removed; the reaper will remove it: %s", sandbox.id, error)
        self._being_removed.discard(sandbox.id)


def _pool_key(spec: SandboxSpec) -> str:
    """Return a key of all fields of ``spec`` except its labels."""
    return repr(replace(spec, labels={}, env=dict(sorted(spec.env.items()))))

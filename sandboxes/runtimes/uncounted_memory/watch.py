"""End sandboxes that hold too much memory which no cgroup counts, before the machine runs out of it.

Each second the loop reads the kernel's own memory and the number of file locks, in 0.2 ms. If one has grown much, and
otherwise twice a minute, ``measure.survey`` measures each sandbox in a thread, in 0.4 ms of CPU time each. A sandbox is
ended only for what it holds itself, so no sandbox can cause the end of another.

Figures that are estimated or assumed (see ``UncountedMemory.certain``) count only if they are too high in three
surveys in a row, a second apart, because legitimate programs soon receive what was sent to them.
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.host.pressure import MEMORY_AMPLE, read_pressure
from sandboxes.host.uncounted_excess import UncountedExcess
from sandboxes.runtimes.uncounted_memory.descriptors import PROC
from sandboxes.runtimes.uncounted_memory.measure import UncountedMemory, kernel_bytes, locks_on_machine, survey

CHECK_S = 1.0
MAX_SURVEY_INTERVAL_S = 30.0
"""Maximum time between two surveys: memory that one sandbox frees may hide what another takes."""
GROWTH_BYTES = 64 << 20

MAX_HELD_BYTES = 64 << 20
MAX_HELD_SCARCE_BYTES = 16 << 20
"""Limit while memory is short. Legitimate work holds some KiB."""
MAX_LOCKS = 10_000
"""Limit of file locks. Each also slows the locks of others."""
LOCK_TABLE_BYTES, MAX_LOCK_TABLE_BYTES = 1 << 20, 8 << 20
"""Bytes of the lock table that a survey reads, initially and at most. The first MiB takes 0.1 s; twice as much takes
four times as long."""

MAX_DESCRIPTORS, MAX_DESCRIPTORS_SUSPICIOUS = 50_000, 400_000
"""Maximum number of a sandbox's descriptors that a survey reads: usually, and if the kernel's memory has grown or a
sandbox is suspected."""
SUSPICIOUS_SURVEYS = 3
"""Surveys in a row with an estimate above the limit, after which a sandbox is ended."""

KILL_ROUNDS = 200

log = logging.getLogger(__name__)


@dataclass(slots=True)
class MemoryBaseline:
    """Readings at the last survey that ended no sandbox."""

    kernel: int = 0
    locks: int = 0
    table: int = LOCK_TABLE_BYTES
    surveyed_at: float = field(default_factory=time.monotonic)


class UncountedMemoryWatch:
    """Watches the uncounted memory of one owner's sandboxes."""

    def __init__(self) -> None:
        self._groups: dict[str, Path] = {}
        self._reasons: dict[str, str] = {}
        self._suspected: dict[str, int] = {}
        self._loop: asyncio.Task[None] | None = None

    def watch(self, name: str, group: Path) -> None:
        """Watch sandbox ``name``. ``group``: the cgroup that limits its memory."""
        self._groups[name] = group
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._watch())

    def forget(self, name: str) -> None:
        self._groups.pop(name, None)
        self._reasons.pop(name, None)
        self._suspected.pop(name, None)

    def reason(self, name: str) -> str:
        """Return why the watch ended the sandbox, "" if it did not."""
        return self._reasons.get(name, "")

    def close(self) -> None:
        self._groups.clear()
        if self._loop is not None:
            self._loop.cancel()

    async def _watch(self) -> None:
        before = MemoryBaseline(_kernel_bytes(), locks_on_machine())
        while self._groups:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check(before)
            except Exception:  # without this loop nothing is limited; the machine may be short of threads, for example
                log.exception("uncounted memory was not measured; the next try is in %g s", CHECK_S)

    async def check(self, before: MemoryBaseline) -> None:
        """Survey all sandboxes if a reading has grown since ``before``, and end those above the limit."""
        kernel, locks = _kernel_bytes(), locks_on_machine()
        before.kernel, before.locks = min(before.kernel, kernel), min(before.locks, locks)
        many_locks = locks > MAX_LOCKS
        grown = kernel - before.kernel >= GROWTH_BYTES or (many_locks and locks > before.locks + MAX_LOCKS)
        if not grown and time.monotonic() < before.surveyed_at + MAX_SURVEY_INTERVAL_S:
            return
        scarce = read_pressure().memory_left < MEMORY_AMPLE
        max_descriptors = MAX_DESCRIPTORS_SUSPICIOUS if grown or self._suspected else MAX_DESCRIPTORS
        found = await asyncio.to_thread(survey, dict(self._groups), before.table if many_locks else 0, max_descriptors)
        above_limit = self._select_above_limit(found, scarce=scarce)
        for name, held in above_limit.items():
            await self._end(name, held)
        before.surveyed_at = -math.inf if self._suspected else time.monotonic()
        if above_limit:  # the lock table may have hidden others behind them
            before.table = LOCK_TABLE_BYTES
            return
        before.table = min(2 * before.table, MAX_LOCK_TABLE_BYTES) if many_locks else LOCK_TABLE_BYTES
        before.locks = locks
        if grown or not (self._suspected or any(held.sampled for held in found.values())):
            before.kernel = kernel  # otherwise the growth may be in what was not measured

    def _select_above_limit(self, found: Mapping[str, UncountedMemory], *, scarce: bool) -> dict[str, UncountedMemory]:
        """Return sandboxes above the limit. Count those of which only an estimate is above it in ``_suspected``."""
        exceeding = {name: held for name, held in found.items() if _is_above_limit(held, scarce=scarce)}
        suspected = {name: self._suspected.get(name, 0) + 1 for name in exceeding}
        above_limit = {
            name: held
            for name, held in exceeding.items()
            if suspected[name] >= SUSPICIOUS_SURVEYS or _is_above_limit(held.certain, scarce=scarce)
        }
        self._suspected = {name: count for name, count in suspected.items() if name not in above_limit}
        return above_limit

    async def _end(self, name: str, held: UncountedMemory) -> None:
        group = self._groups.get(name)
        if group is None or name in self._reasons:
            return
        self._reasons[name] = (
            f"it held {max(held.bytes >> 20, 1)} MiB of the machine's memory that no limit counts ({held}), "
            "and was ended for it; hold fewer at a time"
        )
        log.warning("sandbox %s was ended: %s", name, self._reasons[name])
        await asyncio.to_thread(_kill, group)


def find_uncounted_excess(groups: Mapping[str, Path]) -> UncountedExcess | None:
    """Return the largest holding of ``groups`` that is above the limit, or None. It blocks."""
    found = survey(groups, LOCK_TABLE_BYTES if locks_on_machine() > MAX_LOCKS else 0)
    high = [held for held in found.values() if _is_above_limit(held, scarce=False)]
    if not high:
        return None
    most = max(high, key=lambda held: (_is_above_limit(held.certain, scarce=False), held.bytes))
    return UncountedExcess(str(most), _is_above_limit(most.certain, scarce=False))


def _is_above_limit(held: UncountedMemory, *, scarce: bool) -> bool:
    return held.locks > MAX_LOCKS or held.bytes > (MAX_HELD_SCARCE_BYTES if scarce else MAX_HELD_BYTES)


def _kernel_bytes() -> int:
    return kernel_bytes((PROC / "meminfo").read_text())


def _kill(group: Path) -> None:
    """Kill all processes in a cgroup. Those that do not die in time are left to the sandbox's removal."""
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")  # version 2, Linux 5.14
        return
    for _ in range(KILL_ROUNDS):
        try:
            pids = (group / "cgroup.procs").read_text().split()
        except OSError:  # the cgroup was removed
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.01)

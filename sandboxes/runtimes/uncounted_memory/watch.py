"""Ends sandboxes that hold too much memory which no control group counts, before the machine runs out of it.

Each second the loop reads two figures, in 0.2 ms: how much memory the kernel itself has, and how many file locks there
are. If one has grown much, and else twice a minute, ``uncounted.survey`` measures each sandbox in a thread, in
0.3 ms of processor time each. A sandbox is ended only for what it holds itself, so no sandbox can have another ended.

Figures that are estimated or assumed (``Held.certain`` is without them) count only if they are too high in three
surveys in a row, each a second after the last. Honest programs soon receive what was sent to them.
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

from sandboxes.host.hoard import Hoard
from sandboxes.host.pressure import PLENTY, read_pressure
from sandboxes.runtimes.uncounted_memory.descriptors import PROC
from sandboxes.runtimes.uncounted_memory.measure import UncountedMemory, kernel_bytes, locks_on_machine, survey

LOOK_S = 1.0
PAUSE_S = 30.0
"""The longest time between two surveys: what others let go of may hide what one takes."""
GROWTH_BYTES = 64 << 20

HELD_MOST_BYTES = 64 << 20
HELD_MOST_SCARCE_BYTES = 16 << 20
"""The bound while memory is short. Honest work holds some KiB."""
LOCKS_MOST = 10_000
"""Each also slows the locks of others."""
LOCK_TABLE_BYTES, LOCK_TABLE_MOST_BYTES = 1 << 20, 8 << 20
"""How much of the table of locks a survey reads, at first and at most: reading takes 0.1 s for the first MiB, and four
times as long for twice as much."""

DESCRIPTORS_MOST, DESCRIPTORS_GROWN = 50_000, 400_000
"""Maximum number of descriptors of a sandbox that a survey reads, at most times and if the kernel's memory has grown or
a sandbox is suspected."""
SUSPECTED = 3
"""Surveys in a row in which an estimate is too high, before a sandbox is ended for it."""

KILL_ROUNDS = 200

log = logging.getLogger(__name__)


@dataclass(slots=True)
class MemoryBaseline:
    """Figures of the last survey that ended no sandbox."""

    kernel: int = 0
    locks: int = 0
    table: int = LOCK_TABLE_BYTES
    surveyed_at: float = field(default_factory=time.monotonic)


class UncountedMemoryWatch:
    """Watches the sandboxes of one owner."""

    def __init__(self) -> None:
        self._groups: dict[str, Path] = {}
        self._reasons: dict[str, str] = {}
        self._suspected: dict[str, int] = {}
        self._loop: asyncio.Task[None] | None = None

    def watch(self, name: str, group: Path) -> None:
        """``group``: the control group in which its memory is limited."""
        self._groups[name] = group
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._watch())

    def forget(self, name: str) -> None:
        self._groups.pop(name, None)
        self._reasons.pop(name, None)
        self._suspected.pop(name, None)

    def reason(self, name: str) -> str:
        """Why the sandbox was ended here; "" if it was not."""
        return self._reasons.get(name, "")

    def close(self) -> None:
        self._groups.clear()
        if self._loop is not None:
            self._loop.cancel()

    async def _watch(self) -> None:
        before = MemoryBaseline(_kernel_bytes(), locks_on_machine())
        while self._groups:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look(before)
            except Exception:  # without the watch no sandbox is bounded; a machine may be short of threads, too
                log.exception("uncounted memory was not measured; the next look is in %g s", LOOK_S)

    async def look(self, before: MemoryBaseline) -> None:
        """Survey all sandboxes if something has grown since ``before``, and end those that hold too much."""
        kernel, locks = _kernel_bytes(), locks_on_machine()
        before.kernel, before.locks = min(before.kernel, kernel), min(before.locks, locks)
        many_locks = locks > LOCKS_MOST
        grown = kernel - before.kernel >= GROWTH_BYTES or (many_locks and locks > before.locks + LOCKS_MOST)
        if not grown and time.monotonic() < before.surveyed_at + PAUSE_S:
            return
        scarce = read_pressure().memory_left < PLENTY
        most = DESCRIPTORS_GROWN if grown or self._suspected else DESCRIPTORS_MOST
        found = await asyncio.to_thread(survey, dict(self._groups), before.table if many_locks else 0, most)
        guilty = self._judge(found, scarce=scarce)
        for name, held in guilty.items():
            await self._end(name, held)
        before.surveyed_at = -math.inf if self._suspected else time.monotonic()
        if guilty:  # there may be others behind them
            before.table = LOCK_TABLE_BYTES
            return
        before.table = min(2 * before.table, LOCK_TABLE_MOST_BYTES) if many_locks else LOCK_TABLE_BYTES
        before.locks = locks
        if grown or not (self._suspected or any(held.sampled for held in found.values())):
            before.kernel = kernel  # else what is not known of them may have grown

    def _judge(self, found: Mapping[str, UncountedMemory], *, scarce: bool) -> dict[str, UncountedMemory]:
        """Return those that hold too much; count in ``self._suspected`` those of which only an estimate is too high."""
        high = {name: held for name, held in found.items() if _is_too_much(held, scarce=scarce)}
        suspected = {name: self._suspected.get(name, 0) + 1 for name in high}
        guilty = {
            name: held
            for name, held in high.items()
            if suspected[name] >= SUSPECTED or _is_too_much(held.certain, scarce=scarce)
        }
        self._suspected = {name: count for name, count in suspected.items() if name not in guilty}
        return guilty

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


def find_hoard(groups: Mapping[str, Path]) -> Hoard | None:
    """Return what one of ``groups`` holds if it is too much. Blocks."""
    found = survey(groups, LOCK_TABLE_BYTES if locks_on_machine() > LOCKS_MOST else 0)
    high = [held for held in found.values() if _is_too_much(held, scarce=False)]
    if not high:
        return None
    most = max(high, key=lambda held: (_is_too_much(held.certain, scarce=False), held.bytes))
    return Hoard(str(most), _is_too_much(most.certain, scarce=False))


def _is_too_much(held: UncountedMemory, *, scarce: bool) -> bool:
    return held.locks > LOCKS_MOST or held.bytes > (HELD_MOST_SCARCE_BYTES if scarce else HELD_MOST_BYTES)


def _kernel_bytes() -> int:
    return kernel_bytes((PROC / "meminfo").read_text())


def _kill(group: Path) -> None:
    """Kill all processes in a control group; what will not die is left to the sandbox's removal."""
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")  # version 2, Linux 5.14
        return
    for _ in range(KILL_ROUNDS):
        try:
            pids = (group / "cgroup.procs").read_text().split()
        except OSError:  # it is gone
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if not pids:
            return
        time.sleep(0.01)

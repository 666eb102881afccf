"""How the sandboxes of one owner end, by whose doing, and why one that lives may not be believed."""

import logging
import time

from sandboxes.cgroups.cgroups import Cgroups
from sandboxes.errors import BootError, GoneBy
from sandboxes.runtimes.base import Ending
from sandboxes.runtimes.docker.exit_cause import KILLED, ROUNDS, STOPPING_S, is_ending
from sandboxes.runtimes.oci.init_process import FirstProcess
from sandboxes.runtimes.oom_attribution import SETTLE_S, Hunger
from sandboxes.runtimes.uncounted_memory.watch import Hoarders

log = logging.getLogger(__name__)


class Ends:
    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._hunger = Hunger(unified=cgroups.unified)
        self._hoarders = Hoarders()
        self._first: dict[str, FirstProcess] = {}
        self._lost: dict[str, str] = {}

    def watch(self, name: str, first: FirstProcess) -> None:
        """From its start on. Raises BootError."""
        self._first[name] = first
        try:
            self._hunger.watch(name, self._cgroups.memory_group(name))
        except OSError as error:
            raise BootError(f"for whose want of memory it may be killed is not told: {error}") from None
        self._hoarders.watch(name, self._cgroups.memory_group(name))

    def first_pid(self, name: str) -> int:
        return self._first[name].pid

    def lose_all(self, why: str) -> None:
        """No answer of those that live now is to be believed."""
        log.error("%d sandboxes are lost: %s", len(self._first), why)
        self._lost.update(dict.fromkeys(self._first, why))

    def doubt(self, name: str) -> str:
        return self._lost.get(name) or self._hunger.by_others(name)

    async def bring_about(self, name: str) -> None:
        """Its first process is dead, and nothing is told of it any more."""
        first = self._first.pop(name, None)
        if first is not None:
            first.kill()
            await first.until_ended(STOPPING_S)
            first.close()
        self._hunger.forget(name)
        self._hoarders.forget(name)
        self._lost.pop(name, None)

    async def of(self, name: str, doubt: str) -> Ending:
        """``doubt``: what it stands on and has broken. Never raises."""
        first = self._first.get(name)
        if first is None:
            return Ending("it was removed", GoneBy.OUTSIDE)
        if reason := self._hoarders.reason(name):
            return Ending(reason, GoneBy.MEMORY)
        if doubt:
            return Ending(doubt, GoneBy.OUTSIDE)
        asked_at = time.monotonic()
        rounds_left = ROUNDS
        while not (ended := await first.until_ended(STOPPING_S)) and rounds_left and is_ending(first.pid):
            rounds_left -= 1  # it waits for all others inside to be dead
        if not ended and not is_ending(first.pid):  # of one that ended another may have the number
            if self._cgroups.is_frozen(name):
                return Ending("it is frozen", GoneBy.OUTSIDE)
            return Ending("its first process lives", GoneBy.INSIDE)
        await first.until_told(STOPPING_S)
        # Of two reasons for one kill the likelier is told: few kill by hand what was short of memory just now.
        if first.status in (None, KILLED) and self._hunger.reached_limit(name, asked_at - SETTLE_S):
            return Ending("it ran out of memory", GoneBy.MEMORY)
        by = GoneBy.OUTSIDE if first.status in (None, KILLED) else GoneBy.INSIDE
        return Ending(f"its first process ended with status {first.status}", by)

    def close(self) -> None:
        self._hunger.close()
        self._hoarders.close()

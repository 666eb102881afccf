"""How the sandboxes of one owner end, by whose doing, and why one that lives may not be believed."""

import logging
import time

from sandboxes.cgroups.cgroups import Cgroups
from sandboxes.errors import BootError, LossCause
from sandboxes.runtimes.base import ExitCause
from sandboxes.runtimes.docker.exit_cause import KILLED, ROUNDS, STOPPING_S, is_ending
from sandboxes.runtimes.oci.init_process import InitProcess
from sandboxes.runtimes.oom_attribution import SETTLE_S, OomAttribution
from sandboxes.runtimes.uncounted_memory.watch import UncountedMemoryWatch

log = logging.getLogger(__name__)


class ExitTracker:
    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._hunger = OomAttribution(unified=cgroups.unified)
        self._hoarders = UncountedMemoryWatch()
        self._first: dict[str, InitProcess] = {}
        self._lost: dict[str, str] = {}

    def watch(self, name: str, first: InitProcess) -> None:
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

    def integrity_error(self, name: str) -> str:
        return self._lost.get(name) or self._hunger.by_others(name)

    async def kill(self, name: str) -> None:
        """Its first process is dead, and nothing is told of it any more."""
        first = self._first.pop(name, None)
        if first is not None:
            first.kill()
            await first.until_ended(STOPPING_S)
            first.close()
        self._hunger.forget(name)
        self._hoarders.forget(name)
        self._lost.pop(name, None)

    async def cause_of(self, name: str, doubt: str) -> ExitCause:
        """``doubt``: what it stands on and has broken. Never raises."""
        first = self._first.get(name)
        if first is None:
            return ExitCause("it was removed", LossCause.OUTSIDE)
        if reason := self._hoarders.reason(name):
            return ExitCause(reason, LossCause.MEMORY)
        if doubt:
            return ExitCause(doubt, LossCause.OUTSIDE)
        asked_at = time.monotonic()
        rounds_left = ROUNDS
        while not (ended := await first.until_ended(STOPPING_S)) and rounds_left and is_ending(first.pid):
            rounds_left -= 1  # it waits for all others inside to be dead
        if not ended and not is_ending(first.pid):  # of one that ended another may have the number
            if self._cgroups.is_frozen(name):
                return ExitCause("it is frozen", LossCause.OUTSIDE)
            return ExitCause("its first process lives", LossCause.INSIDE)
        await first.until_told(STOPPING_S)
        # Of two reasons for one kill the likelier is told: few kill by hand what was short of memory just now.
        if first.status in (None, KILLED) and self._hunger.reached_limit(name, asked_at - SETTLE_S):
            return ExitCause("it ran out of memory", LossCause.MEMORY)
        by = LossCause.OUTSIDE if first.status in (None, KILLED) else LossCause.INSIDE
        return ExitCause(f"its first process ended with status {first.status}", by)

    def close(self) -> None:
        self._hunger.close()
        self._hoarders.close()

"""Track how the sandboxes of one owner end, who caused it, and whether the answers of living ones are reliable."""

import logging
import time

from sandboxes.cgroups.cgroups import Cgroups
from sandboxes.errors import BootError, LossCause
from sandboxes.runtimes.base import ExitCause
from sandboxes.runtimes.docker.exit_cause import KILLED, STOPPING_ROUNDS, STOPPING_S, is_ending
from sandboxes.runtimes.oci.init_process import InitProcess
from sandboxes.runtimes.oom_attribution import SETTLE_S, OomAttribution
from sandboxes.runtimes.uncounted_memory.watch import UncountedMemoryWatch

log = logging.getLogger(__name__)


class ExitTracker:
    """The init processes of an owner's sandboxes, and the causes of their ends."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._oom_attribution = OomAttribution(unified=cgroups.unified)
        self._uncounted_memory = UncountedMemoryWatch()
        self._init_processes: dict[str, InitProcess] = {}
        self._lost: dict[str, str] = {}

    def watch(self, name: str, init: InitProcess) -> None:
        """Watch a sandbox from its start. Raises BootError."""
        self._init_processes[name] = init
        try:
            self._oom_attribution.watch(name, self._cgroups.memory_group(name))
        except OSError as error:
            raise BootError(f"OOM kills of sandbox {name} cannot be observed: {error}") from None
        self._uncounted_memory.watch(name, self._cgroups.memory_group(name))

    def first_pid(self, name: str) -> int:
        return self._init_processes[name].pid

    def lose_all(self, why: str) -> None:
        """Mark the answers of all current sandboxes as unreliable."""
        log.error("%d sandboxes are lost: %s", len(self._init_processes), why)
        self._lost.update(dict.fromkeys(self._init_processes, why))

    def integrity_error(self, name: str) -> str:
        return self._lost.get(name) or self._oom_attribution.by_others(name)

    async def kill(self, name: str) -> None:
        """Kill a sandbox's init process, wait for its end, and stop watching it."""
        init = self._init_processes.pop(name, None)
        if init is not None:
            init.kill()
            await init.wait_for_end(STOPPING_S)
            init.close()
        self._oom_attribution.forget(name)
        self._uncounted_memory.forget(name)
        self._lost.pop(name, None)

    async def cause_of(self, name: str, integrity_error: str) -> ExitCause:
        """Return why a sandbox does not answer. ``integrity_error``: of what it depends on. Never raises."""
        init = self._init_processes.get(name)
        if init is None:
            return ExitCause("it was removed", LossCause.OUTSIDE)
        if reason := self._uncounted_memory.reason(name):
            return ExitCause(reason, LossCause.MEMORY)
        if integrity_error:
            return ExitCause(integrity_error, LossCause.OUTSIDE)
        asked_at = time.monotonic()
        rounds_left = STOPPING_ROUNDS
        while not (ended := await init.wait_for_end(STOPPING_S)) and rounds_left and is_ending(init.pid):
            rounds_left -= 1  # the init process waits for all other processes inside to die
        if not ended and not is_ending(init.pid):  # after its end another process may have the id
            if self._cgroups.is_frozen(name):
                return ExitCause("it is frozen", LossCause.OUTSIDE)
            return ExitCause("its init process is alive", LossCause.INSIDE)
        await init.wait_for_status(STOPPING_S)
        # A kill soon after the limit was reached is most likely an OOM kill.
        if init.status in (None, KILLED) and self._oom_attribution.reached_limit(name, asked_at - SETTLE_S):
            return ExitCause("it ran out of memory", LossCause.MEMORY)
        by = LossCause.OUTSIDE if init.status in (None, KILLED) else LossCause.INSIDE
        return ExitCause(f"its init process ended with status {init.status}", by)

    def close(self) -> None:
        self._oom_attribution.close()
        self._uncounted_memory.close()

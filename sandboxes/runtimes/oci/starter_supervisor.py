"""Keep the starter and the OCI runtime that it runs in working order.

A runtime that is loaded once saves each start about 3 ms, but all starts depend on that process. If it cannot be loaded
or stops working, the same program is executed at each start.
"""

import logging
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.oci.host import OciHost
from sandboxes.runtimes.oci.oci_programs import OciProgram
from sandboxes.runtimes.oci.starter import Starter

NO_INIT_PROCESS = 125
"""Status of a start without an init process: the starter's own refusals have it too; OCI runtimes exit with 0 or 1."""

MAX_FAILURES = 3
"""Consecutive failed starts after which a loaded runtime is tested: images can also cause failures."""

log = logging.getLogger(__name__)


class StarterSupervisor:
    """``program`` and ``starter`` are replaced on failure. ``degraded``: missing features, one line each."""

    def __init__(self, host: OciHost, program: OciProgram, starter: Starter, degraded: tuple[str, ...] = ()) -> None:
        self.program = program
        self.starter = starter
        self.degraded = degraded
        self._host = host
        self._failure_count = 0

    @property
    def needs_trial(self) -> bool:
        """Return True if a trial start should decide whether to ``fall_back``."""
        return self.program.loaded_once and self._failure_count >= MAX_FAILURES

    def reset_failures(self) -> None:
        self._failure_count = 0

    async def count_failures(self, start: Coroutine[Any, Any, int], pid_file: Path) -> int:
        """Await ``start`` and return its status, or ``NO_INIT_PROCESS`` if that is 0 but ``pid_file`` is missing.

        The runtime forks, and does not report how its child ended. Counts consecutive failures. Raises as ``start``.
        """
        try:
            status = await start
        except RuntimeUnavailable:
            self._failure_count += 1
            raise
        if not status and not pid_file.exists():  # noqa: ASYNC240 - one stat of a file that was just written
            status = NO_INIT_PROCESS
        self._failure_count = self._failure_count + 1 if status else 0
        return status

    async def renew(self) -> None:
        """Restart the starter. Sandboxes live on, and their exit statuses are lost, which counts as caused outside.

        Raises RuntimeUnavailable.
        """
        log.warning("the starter of sandboxes has ended or lost its disk; it is restarted")
        await self.starter.close()
        try:
            self.starter = await self._host.launch(self.program)
        except RuntimeUnavailable as error:
            if not self.program.loaded_once:
                raise
            await self.fall_back(str(error))

    async def fall_back(self, why: str) -> None:
        """Execute the program at each start from now on. Raises RuntimeUnavailable."""
        lack = executed_at_each_start(self.program, why)
        log.warning("%s", lack)
        self.degraded = (*self.degraded, lack)
        self.program = replace(self.program, loaded_once=False)
        self.reset_failures()
        await self.starter.close()
        self.starter = await self._host.launch(self.program)


def executed_at_each_start(program: OciProgram, why: str) -> str:
    return (
        f"{program.path.name} is executed at each start, which costs 3 ms of CPU time; it cannot be loaded once: {why}"
    )

"""Take the kernel's lock for cgroup migration before it is needed, so that a sandbox's start does not wait for it.

If no process was migrated in the last 10 ms or so, a migration first waits for an RCU grace period: 7 to 12 ms, half of
a start. A migration soon afterwards does not wait. Linux never waits with ``cgroup_favordynmods=1``, but forks are then
slower.
"""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sandboxes.cgroups.cgroups import PROCS_FILE, Hierarchies
from sandboxes.linux.small_files import read_small_file, write_small_file

OWN_PID = "0"
WARM_PERIOD_S = 0.004
"""Period of repeated migrations. One keeps the lock warm for about twice this time."""

T = TypeVar("T")


class MoveLockWarmer:
    """Migrates this process to its own cgroup, which changes nothing but warms the lock."""

    def __init__(self, hierarchies: Hierarchies) -> None:
        self._controller = "" if hierarchies.unified else "freezer"
        self._mount = hierarchies.mounts.get(self._controller)
        self._group = ""
        self._procs_file: Path | None = None
        self._migration: asyncio.Future[None] | None = None

    def warm(self) -> None:
        """Announce a migration. Does not wait."""
        if self._migration is None or self._migration.done():
            self._migration = asyncio.get_running_loop().run_in_executor(None, self.migrate_to_own_cgroup)

    def migrate_to_own_cgroup(self) -> None:
        """Migrate this process to its own cgroup. Blocks during the RCU grace period."""
        with contextlib.suppress(OSError):
            if (own := self.own_procs_file()) is not None:
                write_small_file(own, OWN_PID)

    def own_procs_file(self) -> Path | None:
        """Return the process list of this process's own cgroup, or None if it cannot be seen. Raises OSError."""
        for line in read_small_file("/proc/self/cgroup").splitlines():
            _, controllers, group = line.split(":", 2)
            if self._controller in controllers.split(","):
                if group != self._group:
                    self._procs_file, self._group = self._procs_file_of(group), group
                return self._procs_file
        return None

    def _procs_file_of(self, group: str) -> Path | None:
        if self._mount is None or ".." in group:
            return None
        own_procs_file = self._mount / group.lstrip("/") / PROCS_FILE
        # In a container another cgroup may be mounted there; its list lacks this process.
        return own_procs_file if str(os.getpid()) in own_procs_file.read_text().split() else None

    async def warm_during(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` and keep the lock warm, because a process is migrated soon after its end."""
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait({task}, timeout=WARM_PERIOD_S))[0]:
            self.warm()
        return task.result()

    async def wait(self) -> None:
        """Wait until the current migration is done."""
        if self._migration is not None:
            await asyncio.wait({self._migration})

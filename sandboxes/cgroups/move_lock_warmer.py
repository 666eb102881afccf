"""The lock that a process is moved into a control group under, asked for before it is needed.

Where nobody moved a process in the last some 10 ms, the kernel first lets every processor pass once (an RCU grace
period, 7 to 12 ms, half of a start), and the OCI runtime waits for it. Who moves a process meanwhile need not wait
again. Linux waits for nothing where it was started with ``cgroup_favordynmods=1``, at the price of slower forks.
"""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from sandboxes.cgroups.cgroups import LIST, Hierarchies
from sandboxes.linux.small_files import read_small_file, write_small_file

ITSELF = "0"
AGAIN_S = 0.004
"""What was asked for lasts for about twice that."""

T = TypeVar("T")


class MoveLockWarmer:
    def __init__(self, hierarchies: Hierarchies) -> None:
        self._controller = "" if hierarchies.unified else "freezer"
        self._place = hierarchies.places.get(self._controller)
        self._group = ""
        self._list: Path | None = None
        self._asking: asyncio.Future[None] | None = None

    def warm(self) -> None:
        """A process will be moved in a moment. Does not wait."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().run_in_executor(None, self.ask)

    def ask(self) -> None:
        """This process moves to where it is. Blocks, for as long as the kernel takes."""
        with contextlib.suppress(OSError):
            if (own := self.own_list()) is not None:
                write_small_file(own, ITSELF)

    def own_list(self) -> Path | None:
        """Of the processes of this one's own group; None where that is not to be seen. Raises OSError."""
        for line in read_small_file("/proc/self/cgroup").splitlines():
            _, controllers, group = line.split(":", 2)
            if self._controller in controllers.split(","):
                if group != self._group:
                    self._list, self._group = self._list_of(group), group
                return self._list
        return None

    def _list_of(self, group: str) -> Path | None:
        if self._place is None or ".." in group:
            return None
        found = self._place / group.lstrip("/") / LIST
        # Where another group is mounted there, its list is another's.
        return found if str(os.getpid()) in found.read_text().split() else None

    async def before(self, work: Coroutine[Any, Any, T]) -> T:
        """``work``, soon after whose end a process will be moved."""
        working = asyncio.ensure_future(work)
        while not (await asyncio.wait({working}, timeout=AGAIN_S))[0]:
            self.warm()
        return working.result()

    async def settled(self) -> None:
        """What was asked for is done."""
        if self._asking is not None:
            await asyncio.wait({self._asking})

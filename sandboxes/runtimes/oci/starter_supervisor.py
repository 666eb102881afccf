"""What starts sandboxes, kept going: the program, and the starter that runs it.

A program that is loaded once saves each start some 3 ms, and is one process that all starts hang on. Where that cannot
be, or no longer works, the same program is run anew at each start.
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

NOBODY = 125
"""As the starter's own refusals: no status of the program's, which says 0 or 1."""

FAILURES = 3
"""Starts that failed one after the other, before what is loaded once is doubted: images too keep one from starting."""

log = logging.getLogger(__name__)


class StarterSupervisor:
    """``program`` and ``starter`` change. ``lacks``: what starts go without, a line each."""

    def __init__(self, ground: OciHost, program: OciProgram, starter: Starter, lacks: tuple[str, ...] = ()) -> None:
        self.program = program
        self.starter = starter
        self.lacks = lacks
        self._ground = ground
        self._failures = 0

    @property
    def doubtful(self) -> bool:
        """Whether a start that must work should be tried, and ``fall_back`` follow where it does not."""
        return self.program.loaded_once and self._failures >= FAILURES

    def trust(self) -> None:
        self._failures = 0

    async def counted(self, start: Coroutine[Any, Any, int], pid_file: Path) -> int:
        """The status of a ``Starter.start``; ``NOBODY`` where that went well, but for who is not in ``pid_file``: the
        program parts in two, and says nothing of how its other half ended. Raises as that does."""
        try:
            status = await start
        except RuntimeUnavailable:
            self._failures += 1
            raise
        if not status and not pid_file.exists():  # noqa: ASYNC240 - a look at what was just written
            status = NOBODY
        self._failures = self._failures + 1 if status else 0
        return status

    async def renew(self) -> None:
        """The starter is started again: sandboxes that live go on, and how they end counts as done from outside.

        Raises RuntimeUnavailable.
        """
        log.warning("what starts sandboxes is started again")
        await self.starter.close()
        try:
            self.starter = await self._ground.launch(self.program)
        except RuntimeUnavailable as error:
            if not self.program.loaded_once:
                raise
            await self.fall_back(str(error))

    async def fall_back(self, why: str) -> None:
        """From now on the program is run at each start. Raises RuntimeUnavailable."""
        lack = run_at_each_start(self.program, why)
        log.warning("%s", lack)
        self.lacks = (*self.lacks, lack)
        self.program = replace(self.program, loaded_once=False)
        self.trust()
        await self.starter.close()
        self.starter = await self._ground.launch(self.program)


def run_at_each_start(program: OciProgram, why: str) -> str:
    return f"{program.path.name} is run anew at each start, which takes 3 ms more of a processor; loaded once: {why}"

"""What makes tests show that they depend on more than the code: another order, and too little of the processors.

For validation only; an episode's tests run as they come.
"""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from farm.core.task import ReportFormat
from sandboxes.errors import PathError
from sandboxes.interface import MIB, Sandbox

ORDER_INSIDE = Path(__file__).parent / "reports" / "shuffle_tests.py"
ORDERED = "ordered"
"""The component that says whether an order that was asked for was had: 1 or 0."""
PROCESSOR_S = "processor_s"
"""The component that says, of a command with busy neighbours, how many processor seconds all of them had together."""
_SPENT = "/tmp/.farm-spent"
_TICKS_A_SECOND = 100  # of every Linux that Python runs on; what is compiled in is not asked for
_PLUGIN = "farm_test_order"


@dataclass(frozen=True, slots=True)
class Stress:
    """``order``: a seed, by which tests run in a random order: files, classes in a file, tests in a class; of pytest's
    and unittest's tests, without anything that the image would have to hold. ``busy``: so many processes that only
    compute run beside the command. They share the quota of its sandbox, so no other sandbox is slower for them, and end
    with it.
    """

    order: int | None = None
    cpu_hogs: int = 0

    def around(self, command: str) -> str:
        """``command`` among its neighbours; none of them is a job that the shell would wait for."""
        if not self.cpu_hogs:
            return command
        busy = f"for _ in {'. ' * self.cpu_hogs}; do ( while :; do :; done & ) > /dev/null 2>&1; done"
        note = f"status=$?; /.farm/bin/busybox cat /proc/[0-9]*/stat > {_SPENT} 2> /dev/null; exit $status"
        return f"{busy}\n(\n{command}\n)\n{note}"

    async def facts(self, sandbox: Sandbox) -> Mapping[str, float]:
        """Components, once the command has ended; none where it was broken off."""
        if not self.cpu_hogs:
            return {}
        try:
            content = await sandbox.read_file(_SPENT, limit=MIB)
        except PathError:
            return {}
        return {PROCESSOR_S: spent_s(content)}


NO_STRESS = Stress()


def spent_s(content: bytes) -> float:
    """The processor seconds of processes and of their children that ended, from the text of their ``/proc/*/stat``."""
    ticks = 0
    for line in content.splitlines():
        fields = line.rpartition(b")")[2].split()[11:15]  # proc(5): utime, stime, cutime, cstime
        ticks += sum(map(int, fields))
    return ticks / _TICKS_A_SECOND


@dataclass(frozen=True, slots=True)
class RunOrder:
    """How one test command is made to run its tests in an order. ``report`` is where it writes."""

    seed: int
    report: str

    @property
    def mark(self) -> str:
        """A file that is there where the order was had."""
        return f"{self._home}/ordered"

    async def was_applied(self, sandbox: Sandbox) -> float:
        """1 or 0."""
        try:
            await sandbox.stat(self.mark)
        except PathError:
            return 0.0
        return 1.0

    @property
    def plugin(self) -> str:
        return f"{self._home}/{_PLUGIN}.py"

    @property
    def _home(self) -> str:
        return f"{posixpath.dirname(self.report)}/order"

    @property
    def env(self) -> Mapping[str, str]:
        return {"FARM_TEST_ORDER": str(self.seed), "FARM_TEST_ORDERED": self.mark}

    def around(self, command: str, kind: ReportFormat) -> str:
        """What pytest is told reaches it by its variables, whatever calls it."""
        if kind is not ReportFormat.PYTEST:
            return command
        return (
            f'export PYTHONPATH={quote(self._home)}"${{PYTHONPATH:+:$PYTHONPATH}}" '
            f'PYTEST_ADDOPTS="$PYTEST_ADDOPTS -p {_PLUGIN}"\n{command}'
        )

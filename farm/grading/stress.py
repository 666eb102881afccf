"""Conditions that reveal tests which depend on more than the code: another order of tests, and CPU load.

For validation only; an episode's tests run without them.
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
"""The component that is 1 if the tests ran in the requested order, else 0."""
PROCESSOR_S = "processor_s"
"""The component that holds the processor seconds of a command and its busy neighbours together."""
_SPENT = "/tmp/.farm-spent"
_TICKS_A_SECOND = 100  # on every Linux that Python supports
_PLUGIN = "farm_test_order"


@dataclass(frozen=True, slots=True)
class Stress:
    """``order``: a seed, by which tests of pytest and unittest run in a random order: files, classes in a file, tests
    in a class. The image needs nothing for that. ``cpu_hogs``: so many processes that only compute run beside the
    command. They share the quota of its sandbox, so they slow no other sandbox, and they end with it.
    """

    order: int | None = None
    cpu_hogs: int = 0

    def around(self, command: str) -> str:
        """Return ``command`` with its busy neighbours; none of them is a job that the shell would wait for."""
        if not self.cpu_hogs:
            return command
        busy = f"for _ in {'. ' * self.cpu_hogs}; do ( while :; do :; done & ) > /dev/null 2>&1; done"
        note = f"status=$?; /.farm/bin/busybox cat /proc/[0-9]*/stat > {_SPENT} 2> /dev/null; exit $status"
        return f"{busy}\n(\n{command}\n)\n{note}"

    async def facts(self, sandbox: Sandbox) -> Mapping[str, float]:
        """Return components when the command has ended; none if it was killed."""
        if not self.cpu_hogs:
            return {}
        try:
            content = await sandbox.read_file(_SPENT, limit=MIB)
        except PathError:
            return {}
        return {PROCESSOR_S: spent_s(content)}


NO_STRESS = Stress()


def spent_s(content: bytes) -> float:
    """Return the processor seconds of processes and their ended children from the text of ``/proc/*/stat``."""
    ticks = 0
    for line in content.splitlines():
        fields = line.rpartition(b")")[2].split()[11:15]  # proc(5): utime, stime, cutime, cstime
        ticks += sum(map(int, fields))
    return ticks / _TICKS_A_SECOND


@dataclass(frozen=True, slots=True)
class RunOrder:
    """The order in which one test command runs its tests. ``report`` is the path of its report."""

    seed: int
    report: str

    @property
    def mark(self) -> str:
        """The path of a file that exists if the tests ran in the order."""
        return f"{self._home}/ordered"

    async def was_applied(self, sandbox: Sandbox) -> float:
        """Return 1 if the tests ran in the order, else 0."""
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
        """Return ``command`` with the plugin. pytest gets it by variables, because any program may call pytest."""
        if kind is not ReportFormat.PYTEST:
            return command
        return (
            f'export PYTHONPATH={quote(self._home)}"${{PYTHONPATH:+:$PYTHONPATH}}" '
            f'PYTEST_ADDOPTS="$PYTEST_ADDOPTS -p {_PLUGIN}"\n{command}'
        )

"""Calls of tools as a policy makes them, timed."""

import json
import time
from typing import Any

from farm.bench.figures import BenchError
from sandboxes import Sandbox
from sandboxes.tools import Toolset

EDIT = "str_replace_based_edit_tool"
TIMEOUT_S = 60.0


class Hands:
    """A toolset; a call that does not do what it should is a BenchError."""

    def __init__(self) -> None:
        self._tools = Toolset.default()

    async def run_true(self, sandbox: Sandbox) -> float:
        """The ``bash`` tool with the command ``true``; the seconds it took."""
        return await self.use(sandbox, "bash", _TRUE)

    async def use(self, sandbox: Sandbox, tool: str, arguments: str) -> float:
        """One call with ``arguments`` as JSON; the seconds it took."""
        began = time.perf_counter()
        result = await self._tools.call(sandbox, tool, arguments, timeout_s=TIMEOUT_S)
        took_s = time.perf_counter() - began
        if result.error_kind is not None or result.exit_code not in (None, 0):
            raise BenchError(f"a call of {tool} failed in sandbox {sandbox.id}: {result.content[:200]}")
        return took_s


def written(**arguments: Any) -> str:
    """Arguments as a policy writes them."""
    return json.dumps(arguments)


_TRUE = written(command="true")

"""Calls that must not overlap in one sandbox take their turns."""

import asyncio
from weakref import WeakValueDictionary

from sandboxes.interface import Sandbox


class SandboxLocks:
    """A lock for each sandbox, or each ``part`` of it, forgotten when nobody holds or awaits it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, sandbox: Sandbox, part: str = "") -> asyncio.Lock:
        return self._locks.setdefault((sandbox.id, part), asyncio.Lock())

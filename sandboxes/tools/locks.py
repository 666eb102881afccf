"""Locks for calls that must not overlap in one sandbox."""

import asyncio
from weakref import WeakValueDictionary

from sandboxes.interface import Sandbox


class SandboxLocks:
    """One lock for each sandbox, or for each ``part`` of a sandbox. A lock that no task holds or awaits is
    garbage-collected.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, sandbox: Sandbox, part: str = "") -> asyncio.Lock:
        return self._locks.setdefault((sandbox.id, part), asyncio.Lock())

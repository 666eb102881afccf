"""Calls that must not overlap in one sandbox take their turns."""

import asyncio
from weakref import WeakValueDictionary

from sandboxes.sandbox import Sandbox


class OneAtATime:
    """A lock for each sandbox, forgotten when nobody holds or awaits it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, sandbox: Sandbox) -> asyncio.Lock:
        return self._locks.setdefault(sandbox.id, asyncio.Lock())

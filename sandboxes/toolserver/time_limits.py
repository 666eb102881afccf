"""Time limits of calls that stop with the sandbox and go on with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TimeLimits:
    """The limits of the calls in progress. While they are paused, no time passes for them."""

    def __init__(self) -> None:
        self._left_s: dict[asyncio.Timeout, float] = {}
        """The seconds that each limit has left, from the last pause or its beginning."""
        self._is_paused = False

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """Limit the block like ``asyncio.timeout``."""
        async with asyncio.timeout(None if self._is_paused else seconds) as timeout:
            self._left_s[timeout] = seconds
            try:
                yield
            finally:
                del self._left_s[timeout]

    def pause(self) -> None:
        """Let no time pass for the calls in progress, and for new ones."""
        if self._is_paused:
            return
        self._is_paused = True
        now = asyncio.get_running_loop().time()
        for timeout in self._left_s:
            when = timeout.when()
            if when is not None and not timeout.expired():
                self._left_s[timeout] = max(0.0, when - now)
                timeout.reschedule(None)

    def resume(self) -> None:
        """End ``pause``."""
        if not self._is_paused:
            return
        self._is_paused = False
        now = asyncio.get_running_loop().time()
        for timeout, left_s in self._left_s.items():
            if not timeout.expired():
                timeout.reschedule(now + left_s)

"""How many rollouts are published in a minute."""

from collections import deque

_RATE_S = 60.0
"""The time over which the rate is measured."""


class RateMeter:
    """Measures how many rollouts a farm publishes."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def per_minute(self, at_s: float, accepted: int) -> float | None:
        """Add a count. Return the rollouts per minute over ``_RATE_S``; None if this is the first count.

        The meter begins again if the count falls, because runs were deleted.
        """
        if self._counts and accepted < self._counts[-1][1]:
            self._counts.clear()
        self._counts.append((at_s, accepted))
        while at_s - self._counts[0][0] > _RATE_S:
            self._counts.popleft()
        first_s, first = self._counts[0]
        return None if at_s <= first_s else 60 * (accepted - first) / (at_s - first_s)

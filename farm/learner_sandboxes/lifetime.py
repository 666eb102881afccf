"""How long a learner sandbox lives. Pure: every function takes the time, in seconds of one monotonic clock."""

import math
from dataclasses import dataclass

IDLE_S = 600.0
"""Default of ``idle_s``: a sandbox without calls is removed after this time."""
LIFE_S = 3600.0
"""Default of ``timeout_s``: a sandbox is removed at this age, also during a call."""
LONGEST_LIFE_S = 86_400.0
WARNING_SHARE = 0.2
"""A warning is given when less than this share of the idle time is left."""


@dataclass(slots=True)
class Lifetime:
    """The rules of one sandbox. ``ends_at`` is its hard end; ``drain_ends_at``: also its end, while its node drains.

    A call that runs keeps the sandbox from idling. A crashed client makes no calls, so its sandbox idles.
    """

    idle_s: float
    ends_at: float
    used_at: float
    running: int = 0
    drain_ends_at: float = math.inf

    @classmethod
    def begin(cls, now: float, *, idle_s: float, timeout_s: float) -> "Lifetime":
        return cls(idle_s=idle_s, ends_at=now + timeout_s, used_at=now)

    def call_began(self, now: float) -> None:
        self.running += 1
        self.used_at = now

    def call_ended(self, now: float) -> None:
        self.running -= 1
        self.used_at = now

    def drain(self, now: float) -> None:
        """Stop calls from prolonging the life, and end it after ``IDLE_S`` at the latest. Idempotent."""
        if math.isinf(self.drain_ends_at):
            self.drain_ends_at = now + min(self.idle_s, IDLE_S)

    def resume(self) -> None:
        self.drain_ends_at = math.inf

    def expires_at(self, now: float) -> float:
        used_at = now if self.running else self.used_at
        return min(used_at + self.idle_s, self.ends_at, self.drain_ends_at)

    def is_over(self, now: float) -> bool:
        return now >= self.expires_at(now)

    def reason(self, now: float) -> str:
        """Return why the sandbox expires when it does."""
        at = self.expires_at(now)
        if at == self.drain_ends_at:
            return "its node drains"
        if at == self.ends_at:
            return "it reaches its timeout_s"
        return f"it has no calls for {self.idle_s:g} s"

    def warning(self, now: float) -> str:
        """Return a text if less than a fifth of the idle time is left, else ""."""
        left_s = self.expires_at(now) - now
        if left_s >= WARNING_SHARE * self.idle_s:
            return ""
        return f"the sandbox expires in {max(0.0, left_s):.0f} s, when {self.reason(now)}"

"""Who users inside are outside: a range of ids for each sandbox, so that what the kernel counts by user (open pipes,
watches, descriptors on their way, pending signals) it counts by sandbox."""

import secrets
from collections import Counter

FIRST_ID = 0x7000_0000
"""Above what systemd gives to containers (its UIDS-GIDS); all are below 2³¹."""
IDS = 65_536
"""Of one range; ``sandboxes/starter/mounts.c`` has it too."""
RANGES = (2**31 - FIRST_ID) // IDS


class UidRanges:
    """By their first id, which is root inside. A sandbox's files belong to its range; so forks share their source's.

    Two owners may use the same: they have files apart, and share no more than what the kernel counts.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._sandboxes: Counter[int] = Counter()
        self._last = secrets.randbelow(RANGES)

    def free(self) -> int:
        """One that no other sandbox of this owner has, if there is any."""
        for _ in range(RANGES):
            self._last = (self._last + 1) % RANGES
            if FIRST_ID + self._last * IDS not in self._sandboxes:
                break
        return FIRST_ID + self._last * IDS

    def hold(self, name: str, first_id: int) -> None:
        self.drop(name)
        self._held[name] = first_id
        self._sandboxes[first_id] += 1

    def of(self, name: str) -> int:
        return self._held[name]

    def drop(self, name: str) -> None:
        first_id = self._held.pop(name, None)
        if first_id is None:
            return
        self._sandboxes[first_id] -= 1
        if not self._sandboxes[first_id]:
            del self._sandboxes[first_id]

"""Assign a range of user ids to each sandbox, so that the kernel's per-user limits (open pipes, watches, descriptors in
flight, pending signals) count for each sandbox separately."""

import secrets
from collections import Counter

FIRST_ID = 0x7000_0000
"""Above the range of systemd's containers (its UIDS-GIDS); all ids are below 2³¹."""
IDS = 65_536
"""Size of a range; also in ``sandboxes/starter/mounts.c``."""
RANGES = (2**31 - FIRST_ID) // IDS


class UidRanges:
    """Ranges by their first id, which is root inside. Files of a sandbox have its ids, so a fork has the same range.

    Two owners may use the same range: they share no files, only the kernel's counters.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        self._sandboxes: Counter[int] = Counter()
        self._last = secrets.randbelow(RANGES)

    def free(self) -> int:
        """Return a range that no other sandbox of this owner has, if there is one."""
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

"""For whose want of memory the kernel killed in a sandbox: for the sandbox's own limit, or for others'.

A group's count of kills says how many of its processes the kernel killed for memory, whatever was short: its own
limit's room, that of a group above it, or the machine's memory. Its peak says no more, for files in memory count too,
and go again. What tells the three apart, in version 1, tried on Linux 6.18 and, the machine's row too, in a user-mode
Linux 6.1 whose 256 MiB were all taken:

| short is           | kills | rings here | rings above |
|--------------------|-------|------------|-------------|
| its own limit      | yes   | yes        | no          |
| a limit above it   | yes   | yes        | yes         |
| the machine        | yes   | no         | no          |
| nothing: files go  | no    | no         | no          |

A group rings (an eventfd that ``memory.oom_control`` knows) before the kernel kills, and those below it ring with it.
Version 2 counts what rings here as ``oom`` of ``memory.events``, and what rings above not at all (tried there too).
"""

import asyncio
import contextlib
import math
import os
import time
from pathlib import Path

SETTLE_S = 30.0
"""So long after its limit was reached the kernel may still kill for that: one kill may not do, and others wait."""

COUNTS_BYTES = 1024
OTHERS = "memory ran out on the machine, or in a control group above it, and the kernel killed in it"


class OomEventFd:
    """Rings whenever the limit of a group of version 1, or of one above it, lets nothing more be had. ``counts``: a
    descriptor of the file in which the kernel counts kills there."""

    def __init__(self, group: Path) -> None:
        """Raises OSError."""
        self._group = group
        self._identity = os.stat(group).st_ino
        self._rings = 0
        self.counts = _open(group, "memory.oom_control", os.O_RDONLY)
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            ask = _open(group, "cgroup.event_control", os.O_WRONLY)
            try:
                os.write(ask, b"%d %d" % (self.fd, self.counts))
            finally:
                os.close(ask)
        except OSError:
            self.close()
            raise

    @property
    def hangs(self) -> bool:
        """Whether its group is there still, and no other by that name."""
        try:
            return os.stat(self._group).st_ino == self._identity
        except OSError:
            return False

    def has_fired(self) -> int:
        """So far."""
        with contextlib.suppress(BlockingIOError):
            self._rings += os.eventfd_read(self.fd)
        return self._rings if self.hangs else max(0, self._rings - 1)  # the last one says that the group goes

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.counts)


class _Watched:
    """One sandbox. ``above`` None: in a group of version 2."""

    def __init__(self, group: Path, above: OomEventFd | None) -> None:
        """Raises OSError."""
        self.reached_at = -math.inf
        self.others = False
        self._reached = 0
        self._looked_at = time.monotonic()
        self._above = above
        rung = above.has_fired() if above else 0
        self._bell = OomEventFd(group) if above else None
        self._counts = self._bell.counts if self._bell else _open(group, "memory.events", os.O_RDONLY)
        self._said = os.pread(self._counts, COUNTS_BYTES, 0)
        self._kills = _figure(self._said, b"oom_kill")
        self._before = -rung if above else _figure(self._said, b"oom")
        if self._bell:
            asyncio.get_running_loop().add_reader(self._bell.fd, self.listen)

    def listen(self) -> None:
        """Hear whether its own limit was reached since."""
        if self._bell is None or self._above is None:
            reached = _figure(self._said, b"oom") - self._before
        else:  # above rings first, so it is heard last
            reached = self._bell.has_fired() - self._above.has_fired() - self._before
        if reached > self._reached:
            self._reached, self.reached_at = reached, time.monotonic()

    def look(self) -> None:
        looked_at, now = self._looked_at, time.monotonic()
        with contextlib.suppress(OSError):  # its group is gone
            said = os.pread(self._counts, COUNTS_BYTES, 0)
            if said != self._said:
                self._said, kills = said, _figure(said, b"oom_kill")
                self.listen()
                self.others |= kills > self._kills and self.reached_at < looked_at - SETTLE_S
                self._kills = kills
            self._looked_at = now

    def close(self) -> None:
        if self._bell is None:
            os.close(self._counts)
        else:
            asyncio.get_running_loop().remove_reader(self._bell.fd)
            self._bell.close()


class OomAttribution:
    """Of the sandboxes of one owner, in groups of version 2 where ``unified``."""

    def __init__(self, *, unified: bool) -> None:
        self._unified = unified
        self._watched: dict[str, _Watched] = {}
        self._above: dict[Path, OomEventFd] = {}
        self._bells: list[OomEventFd] = []

    def watch(self, name: str, group: Path) -> None:
        """``group``: its directory, in the hierarchy that limits memory. Raises OSError."""
        self.forget(name)
        self._watched[name] = _Watched(group, None if self._unified else self._bell_of(group.parent))

    def _bell_of(self, group: Path) -> OomEventFd:
        bell = self._above.get(group)
        if bell is None or not bell.hangs:
            bell = self._above[group] = OomEventFd(group)
            self._bells.append(bell)
        return bell

    def forget(self, name: str) -> None:
        if (watched := self._watched.pop(name, None)) is not None:
            watched.close()

    def by_others(self, name: str) -> str:
        """Why nothing that it answered since can be believed: what ran there was killed, and it was not its doing."""
        watched = self._watched.get(name)
        if watched is None:
            return ""
        watched.look()
        return OTHERS if watched.others else ""

    def reached_limit(self, name: str, since: float) -> bool | None:
        """Whether it has come to its own limit ``since``, by the clock of ``time.monotonic``; None: nobody knows."""
        watched = self._watched.get(name)
        if watched is None:
            return None
        watched.look()
        watched.listen()
        return watched.reached_at >= since

    def close(self) -> None:
        for name in list(self._watched):
            self.forget(name)
        for bell in self._bells:
            bell.close()
        self._bells.clear()
        self._above.clear()


def _figure(text: bytes, name: bytes) -> int:
    """``text``: a line for each, with its name and its figure."""
    words = text.split()
    return int(words[words.index(name) + 1]) if name in words else 0


def _open(group: Path, file: str, flags: int) -> int:
    return os.open(f"{group}/{file}", flags | os.O_CLOEXEC)

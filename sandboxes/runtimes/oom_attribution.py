"""Decide whether an OOM kill in a sandbox was caused by the sandbox's own limit, a parent cgroup or the host.

A cgroup's counter of OOM kills has every kill of its processes, for any cause. Its peak usage does not
decide either, because it includes page cache, which is reclaimed. In version 1 the OOM events (an eventfd registered
with ``memory.oom_control``) of the cgroup and its parent decide:

| memory short in         | kill | event in sandbox | event in parent |
|-------------------------|------|------------------|-----------------|
| the sandbox's own limit | yes  | yes              | no              |
| a parent's limit        | yes  | yes              | yes             |
| the host                | yes  | no               | no              |
| none: cache is dropped  | no   | no               | no              |

A cgroup sends its event before the kernel kills, and its children send one too. Version 2 counts the sandbox's
events as ``oom`` in ``memory.events``, and does not count events of the parent there. Tried on Linux 6.18, and with a
full 256 MiB user-mode Linux 6.1.
"""

import asyncio
import contextlib
import math
import os
import time
from pathlib import Path

SETTLE_S = 30.0
"""The kernel may kill for this long after the limit was reached: one kill may not free enough, and others wait."""

COUNTS_BYTES = 1024
KILLED_BY_OTHERS = "memory ran out on the host or in a parent cgroup, and the kernel killed a process of the sandbox"


class OomEventFd:
    """Counts the OOM events of a cgroup of version 1. ``counts``: descriptor of the file with its OOM kill counter."""

    def __init__(self, group: Path) -> None:
        """Raises OSError."""
        self._group = group
        self._identity = os.stat(group).st_ino
        self._events = 0
        self.counts = _open(group, "memory.oom_control", os.O_RDONLY)
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            control = _open(group, "cgroup.event_control", os.O_WRONLY)
            try:
                os.write(control, b"%d %d" % (self.fd, self.counts))
            finally:
                os.close(control)
        except OSError:
            self.close()
            raise

    @property
    def group_exists(self) -> bool:
        """Return True if the cgroup still exists and was not replaced by another of the same name."""
        try:
            return os.stat(self._group).st_ino == self._identity
        except OSError:
            return False

    def count(self) -> int:
        """Return the number of events so far."""
        with contextlib.suppress(BlockingIOError):
            self._events += os.eventfd_read(self.fd)
        return self._events if self.group_exists else max(0, self._events - 1)  # removal of the cgroup is one event

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.counts)


class _WatchedSandbox:
    """The OOM events and kills of one sandbox. ``parent``: events of the parent cgroup, None in version 2."""

    def __init__(self, group: Path, parent: OomEventFd | None) -> None:
        """Raises OSError."""
        self.reached_at = -math.inf
        self.killed_by_others = False
        self._reached = 0
        self._read_at = time.monotonic()
        self._parent = parent
        parent_events = parent.count() if parent else 0
        self._event_fd = OomEventFd(group) if parent else None
        self._counts = self._event_fd.counts if self._event_fd else _open(group, "memory.events", os.O_RDONLY)
        self._counts_text = os.pread(self._counts, COUNTS_BYTES, 0)
        self._kills = _value(self._counts_text, b"oom_kill")
        self._first_count = -parent_events if parent else _value(self._counts_text, b"oom")
        if self._event_fd:
            asyncio.get_running_loop().add_reader(self._event_fd.fd, self.read_events)

    def read_events(self) -> None:
        """Read whether the sandbox's own limit was reached."""
        if self._event_fd is None or self._parent is None:
            reached = _value(self._counts_text, b"oom") - self._first_count
        else:  # the parent's event comes first, so it is read last
            reached = self._event_fd.count() - self._parent.count() - self._first_count
        if reached > self._reached:
            self._reached, self.reached_at = reached, time.monotonic()

    def read_kills(self) -> None:
        """Read the kill counter, and decide by whom new kills were caused."""
        read_at, now = self._read_at, time.monotonic()
        with contextlib.suppress(OSError):  # the cgroup was removed
            text = os.pread(self._counts, COUNTS_BYTES, 0)
            if text != self._counts_text:
                self._counts_text, kills = text, _value(text, b"oom_kill")
                self.read_events()
                self.killed_by_others |= kills > self._kills and self.reached_at < read_at - SETTLE_S
                self._kills = kills
            self._read_at = now

    def close(self) -> None:
        if self._event_fd is None:
            os.close(self._counts)
        else:
            asyncio.get_running_loop().remove_reader(self._event_fd.fd)
            self._event_fd.close()


class OomAttribution:
    """OOM events of one owner's sandboxes. ``unified``: cgroup version 2."""

    def __init__(self, *, unified: bool) -> None:
        self._unified = unified
        self._watched: dict[str, _WatchedSandbox] = {}
        self._parent: dict[Path, OomEventFd] = {}
        self._event_fds: list[OomEventFd] = []

    def watch(self, name: str, group: Path) -> None:
        """Watch sandbox ``name``. ``group``: its directory in the memory hierarchy. Raises OSError."""
        self.forget(name)
        self._watched[name] = _WatchedSandbox(group, None if self._unified else self._parent_events(group.parent))

    def _parent_events(self, group: Path) -> OomEventFd:
        event_fd = self._parent.get(group)
        if event_fd is None or not event_fd.group_exists:
            event_fd = self._parent[group] = OomEventFd(group)
            self._event_fds.append(event_fd)
        return event_fd

    def forget(self, name: str) -> None:
        if (watched := self._watched.pop(name, None)) is not None:
            watched.close()

    def by_others(self, name: str) -> str:
        """Return why answers since are not reliable if a kill was caused from outside the sandbox, else ""."""
        watched = self._watched.get(name)
        if watched is None:
            return ""
        watched.read_kills()
        return KILLED_BY_OTHERS if watched.killed_by_others else ""

    def reached_limit(self, name: str, since: float) -> bool | None:
        """Return True if the sandbox reached its own limit after ``since`` (``time.monotonic``). None: not watched."""
        watched = self._watched.get(name)
        if watched is None:
            return None
        watched.read_kills()
        watched.read_events()
        return watched.reached_at >= since

    def close(self) -> None:
        for name in list(self._watched):
            self.forget(name)
        for event_fd in self._event_fds:
            event_fd.close()
        self._event_fds.clear()
        self._parent.clear()


def _value(text: bytes, name: bytes) -> int:
    """Return the value of ``name`` in ``text``, which has one name and value on each line."""
    words = text.split()
    return int(words[words.index(name) + 1]) if name in words else 0


def _open(group: Path, file: str, flags: int) -> int:
    return os.open(f"{group}/{file}", flags | os.O_CLOEXEC)

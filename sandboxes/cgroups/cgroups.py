"""The cgroups of an owner's sandboxes, version 1 or 2. The OCI runtime creates them; this module freezes
and removes them.

All cgroups of an owner are below one cgroup that carries the owner's name, so that a reaper can find them.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from sandboxes.cgroups.deferred_removal import DeferredRemoval
from sandboxes.errors import SnapshotError
from sandboxes.linux.small_files import read_small_file, write_small_file

CONTROLLERS = frozenset(
    {"blkio", "cpu", "cpuacct", "cpuset", "debug", "devices", "freezer", "hugetlb", "memory", "misc", "net_cls"}
    | {"net_prio", "perf_event", "pids", "rdma"}
)
NEEDED_CONTROLLERS = ("cpu", "memory", "pids", "devices", "freezer")
"""Version 1 controllers that a sandbox needs. Each further one would add about 0.3 ms to a start, and cpuset adds time
for each living sandbox because it scans all its cgroups at each start. crun can omit the others; runc cannot."""

UNIFIED_BESIDE_V1 = "cgroup2"

PROCS_FILE = "cgroup.procs"
"""File with the process ids of a cgroup."""

SOCKET_LIMIT_FILE = "memory.kmem.tcp.limit_in_bytes"
"""Limit of all sockets, not only TCP."""

REMOVE_TIMEOUT_S = 10.0
FREEZE_S = 10.0
RETRY_S = 0.001


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Mounted cgroup hierarchies. ``mounts``: controller → mount point; version 2 has one, under the name ``""``.

    A version 2 hierarchy beside version 1 is named ``UNIFIED_BESIDE_V1``: it limits nothing, but runc uses it.
    """

    mounts: dict[str, Path]

    @property
    def unified(self) -> bool:
        return "" in self.mounts

    def needed(self) -> "Hierarchies":
        """Return only the hierarchies that a sandbox needs."""
        if self.unified:
            return self
        return Hierarchies({name: self.mounts[name] for name in NEEDED_CONTROLLERS if name in self.mounts})

    @property
    def roots(self) -> list[Path]:
        """Return each mount point once."""
        return sorted(set(self.mounts.values()))


def find_hierarchies(mountinfo: str | None = None) -> Hierarchies:
    """Parse ``mountinfo``, the text of proc_pid_mountinfo(5). None: read this process's own."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    mounts: dict[str, Path] = {}
    unified: list[Path] = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        mount, (kind, _, options) = Path(before.split()[4]), after.split()[:3]
        if kind == "cgroup2":
            unified.append(mount)
        elif kind == "cgroup":
            mounts |= {name: mount for name in options.split(",") if name in CONTROLLERS or name.startswith("name=")}
    if unified:
        mounts[UNIFIED_BESIDE_V1 if mounts else ""] = unified[0]
    return Hierarchies(mounts)


def memory_group(pid: int) -> Path | None:
    """Return the cgroup that limits the memory of a process, or None if it cannot be read."""
    mounts = find_hierarchies().mounts
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controller := {"", "memory"} & set(controllers.split(",")) & mounts.keys():
                return mounts[controller.pop()] / group.lstrip("/")
    return None


def limit_sockets(group: Path, limit_bytes: int) -> None:
    """Limit the socket memory of ``group`` in bytes (version 1). Without write permission nothing is limited."""
    limit = group / SOCKET_LIMIT_FILE
    with contextlib.suppress(OSError):
        if limit.exists():
            limit.write_text(str(limit_bytes))


class Cgroups:
    """The cgroups below the cgroup of one owner. Calls on a missing cgroup do nothing."""

    def __init__(self, hierarchies: Hierarchies, group: str) -> None:
        self._hierarchies = hierarchies
        self._group = group
        self._roots = [f"{root}/{group}" for root in hierarchies.roots]
        self._freeze_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._deferred = DeferredRemoval(self._try_remove)

    @property
    def unified(self) -> bool:
        return self._hierarchies.unified

    @property
    def limits_swap(self) -> bool:
        """Return True if the kernel limits swap too, so that a sandbox cannot use it in place of memory."""
        if self.unified:
            return Path("/proc/swaps").read_text().count("\n") > 1
        return (self._hierarchies.mounts["memory"] / "memory.memsw.limit_in_bytes").exists()

    def path_in_config(self, name: str) -> str:
        return f"/{self._group}/{name}"

    @contextlib.asynccontextmanager
    async def starting(self, name: str) -> AsyncIterator[None]:
        """Start a sandbox inside the block. Deferred removals wait until it ends."""
        if name in self._deferred.names:
            await self.remove(name)
        with self._deferred.paused():
            yield

    def names(self) -> set[str]:
        """Return the names of sandboxes that have a cgroup, without those that wait for removal."""
        found: set[str] = set()
        for root in self._roots:
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in os.scandir(root) if entry.is_dir()}
        return found - self._deferred.names

    def holds(self, name: str, pid: int) -> bool:
        return any(str(pid) in self._read_at(f"{root}/{name}/{PROCS_FILE}").split() for root in self._roots)

    def memory_group(self, name: str) -> Path:
        """Return the directory that limits the memory of sandbox ``name``."""
        return self._hierarchies.mounts["" if self.unified else "memory"] / self._group / name

    def limit_sockets(self, name: str, limit_bytes: int) -> None:
        """Limit socket memory in version 1, which does not count it as memory; version 2 does."""
        if not self.unified:
            self._write("memory", name, SOCKET_LIMIT_FILE, str(limit_bytes))

    def memory_bytes(self, name: str) -> int:
        file = "memory.current" if self.unified else "memory.usage_in_bytes"
        return int(self._read("memory", name, file) or 0)

    def is_frozen(self, name: str) -> bool:
        if self.unified:
            return "frozen 1" in self._read("freezer", name, "cgroup.events")
        return self._read("freezer", name, "freezer.state").strip() == "FROZEN"

    async def freeze(self, name: str) -> None:
        """Freeze the cgroup. Return when no process in it runs."""
        if self.unified:
            self._write("freezer", name, "cgroup.freeze", "1")
        else:
            self._write("freezer", name, "freezer.state", "FROZEN")
        while not self.is_frozen(name) and name in self.names():  # noqa: ASYNC110 - the kernel sends no event
            await asyncio.sleep(RETRY_S)

    async def freeze_in_time(self, name: str) -> None:
        """Freeze the cgroup. Raises TimeoutError if a process still runs after ``FREEZE_S``."""
        async with asyncio.timeout(FREEZE_S):
            await self.freeze(name)

    def thaw(self, name: str) -> None:
        if self.unified:
            self._write("freezer", name, "cgroup.freeze", "0")
        else:
            self._write("freezer", name, "freezer.state", "THAWED")

    @contextlib.asynccontextmanager
    async def frozen(self, name: str) -> AsyncIterator[None]:
        """Freeze the cgroup during the block. Raises SnapshotError if a process ran in it nevertheless."""
        lock = self._freeze_locks.setdefault(name, asyncio.Lock())
        async with lock:
            try:
                try:
                    await self.freeze_in_time(name)
                except TimeoutError:
                    raise SnapshotError(
                        f"snapshot of {name}: processes did not freeze in {FREEZE_S:g} s; retry"
                    ) from None
                yield
                if not self.is_frozen(name):
                    raise SnapshotError(f"snapshot of {name}: the sandbox was thawed or removed during the copy; retry")
            finally:
                self.thaw(name)

    async def remove(self, name: str) -> None:
        """Kill all processes and remove the cgroup. After ``REMOVE_TIMEOUT_S`` it is left to the reaper."""
        self._deferred.forget(name)
        await self._kill_until(self._try_remove, name)

    async def remove_later(self, name: str) -> None:
        """Kill all processes and remove the cgroup later, when no sandbox is starting."""
        if self._deferred.has_room:
            if not await self._kill_until(self._is_empty, name):
                return
            if self._deferred.has_room:  # other tasks ran meanwhile
                self._deferred.add(name)
                return
        await self.remove(name)

    async def _kill_until(self, done: Callable[[str], bool], name: str) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REMOVE_TIMEOUT_S):
                while not done(name):
                    self._kill(name)
                    await asyncio.sleep(RETRY_S)
                return True
        return False

    async def remove_group(self) -> None:
        """Remove the owner's own cgroup, after those of its sandboxes."""
        await asyncio.gather(*map(self.remove, self._deferred.names))
        await self._deferred.stop()
        for root in self._roots:
            with contextlib.suppress(OSError):
                os.rmdir(root)

    def _try_remove(self, name: str) -> bool:
        gone = True
        for root in self._roots:
            try:
                os.rmdir(f"{root}/{name}")
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
        return gone

    def _is_empty(self, name: str) -> bool:
        for root in self._roots:
            try:
                if read_small_file(f"{root}/{name}/{PROCS_FILE}"):
                    return False
            except FileNotFoundError:  # no cgroup in this hierarchy
                continue
            except OSError:  # it is being removed, or cannot be read now
                return False
        return True

    def _kill(self, name: str) -> None:
        if self.unified:
            self._write("", name, "cgroup.kill", "1")
            return
        self.thaw(name)  # frozen processes do not die in version 1
        for root in self._roots:
            for pid in self._read_at(f"{root}/{name}/{PROCS_FILE}").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def _mount(self, controller: str) -> Path | None:
        mounts = self._hierarchies.mounts
        return mounts.get("" if self.unified else controller)

    def _read(self, controller: str, name: str, file: str) -> str:
        mount = self._mount(controller)
        return "" if mount is None else self._read_at(mount / self._group / name / file)

    def _read_at(self, path: str | Path) -> str:
        try:
            return read_small_file(path)
        except OSError:  # the cgroup is removed, or is being removed
            return ""

    def _write(self, controller: str, name: str, file: str, value: str) -> None:
        mount = self._mount(controller)
        if mount is not None:
            with contextlib.suppress(OSError):  # the cgroup is removed, or is being removed
                write_small_file(mount / self._group / name / file, value)

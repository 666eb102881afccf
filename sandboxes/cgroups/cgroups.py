"""The control groups of an owner's sandboxes, in either version: made by the OCI runtime, looked after here.

An owner's lie below one group that names it, so that whoever buries it finds them.
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
WANTED = ("cpu", "memory", "pids", "devices", "freezer")
"""The controllers of version 1 that limit or hold a sandbox. Each further one would cost its start some 0.3 ms, and
cpuset, which looks at all its groups at each start, more with each sandbox that lives. crun does without the others,
runc does not."""

BESIDE = "cgroup2"

LIST = "cgroup.procs"
"""Of a group's processes."""

SOCKETS_LIMIT = "memory.kmem.tcp.limit_in_bytes"
"""Of all sockets, whatever its name says."""

GONE_S = 10.0
FREEZE_S = 10.0
RETRY_S = 0.001


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """``places``: controller → where it is mounted; version 2 has one, under the name ``""``. Beside version 1 it
    limits nothing and is named ``BESIDE``: runc makes groups there too."""

    places: dict[str, Path]

    @property
    def unified(self) -> bool:
        return "" in self.places

    def narrowed(self) -> "Hierarchies":
        """Those that a sandbox wants."""
        return (
            self if self.unified else Hierarchies({name: self.places[name] for name in WANTED if name in self.places})
        )

    @property
    def roots(self) -> list[Path]:
        """Where they are mounted, each once."""
        return sorted(set(self.places.values()))


def find_hierarchies(mountinfo: str | None = None) -> Hierarchies:
    """Read from ``mountinfo`` as proc_pid_mountinfo(5) has it, by default this process's own."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    places: dict[str, Path] = {}
    unified: list[Path] = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        where, (kind, _, options) = Path(before.split()[4]), after.split()[:3]
        if kind == "cgroup2":
            unified.append(where)
        elif kind == "cgroup":
            places |= {name: where for name in options.split(",") if name in CONTROLLERS or name.startswith("name=")}
    if unified:
        places[BESIDE if places else ""] = unified[0]
    return Hierarchies(places)


def memory_group(pid: int) -> Path | None:
    """Where the memory of a process is limited; None where that is not to be seen."""
    places = find_hierarchies().places
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controller := {"", "memory"} & set(controllers.split(",")) & places.keys():
                return places[controller.pop()] / group.lstrip("/")
    return None


def limit_sockets(group: Path, at_most: int) -> None:
    """As ``Cgroups.limit_sockets``. Where we may not, there is no such limit."""
    limit = group / SOCKETS_LIMIT
    with contextlib.suppress(OSError):
        if limit.exists():
            limit.write_text(str(at_most))


class Cgroups:
    """The groups below one owner's. Calls on a group that is not there do nothing."""

    def __init__(self, hierarchies: Hierarchies, group: str) -> None:
        self._hierarchies = hierarchies
        self._group = group
        self._roots = [f"{root}/{group}" for root in hierarchies.roots]
        self._standing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._emptied = DeferredRemoval(self._try_remove)

    @property
    def unified(self) -> bool:
        return self._hierarchies.unified

    @property
    def limits_swap(self) -> bool:
        """Whether the kernel counts swap, so that memory cannot be had there instead."""
        if self.unified:
            return Path("/proc/swaps").read_text().count("\n") > 1
        return (self._hierarchies.places["memory"] / "memory.memsw.limit_in_bytes").exists()

    def path_in_config(self, name: str) -> str:
        return f"/{self._group}/{name}"

    @contextlib.asynccontextmanager
    async def starting(self, name: str) -> AsyncIterator[None]:
        """A sandbox is started in the block, and what was ``let_go`` waits for its end."""
        if name in self._emptied.names:
            await self.remove(name)
        with self._emptied.undisturbed():
            yield

    def names(self) -> set[str]:
        """Of the sandboxes that have a group; those that were ``let_go`` have none."""
        found: set[str] = set()
        for root in self._roots:
            with contextlib.suppress(FileNotFoundError):
                found |= {entry.name for entry in os.scandir(root) if entry.is_dir()}
        return found - self._emptied.names

    def holds(self, name: str, pid: int) -> bool:
        return any(str(pid) in self._read_at(f"{root}/{name}/{LIST}").split() for root in self._roots)

    def memory_group(self, name: str) -> Path:
        """Where its memory is limited."""
        return self._hierarchies.places["" if self.unified else "memory"] / self._group / name

    def limit_sockets(self, name: str, at_most: int) -> None:
        """Version 2 counts what waits in them as memory."""
        if not self.unified:
            self._write("memory", name, SOCKETS_LIMIT, str(at_most))

    def memory_bytes(self, name: str) -> int:
        file = "memory.current" if self.unified else "memory.usage_in_bytes"
        return int(self._read("memory", name, file) or 0)

    def is_frozen(self, name: str) -> bool:
        if self.unified:
            return "frozen 1" in self._read("freezer", name, "cgroup.events")
        return self._read("freezer", name, "freezer.state").strip() == "FROZEN"

    async def freeze(self, name: str) -> None:
        """No process in it runs when this returns."""
        if self.unified:
            self._write("freezer", name, "cgroup.freeze", "1")
        else:
            self._write("freezer", name, "freezer.state", "FROZEN")
        while not self.is_frozen(name) and name in self.names():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(RETRY_S)

    def thaw(self, name: str) -> None:
        if self.unified:
            self._write("freezer", name, "cgroup.freeze", "0")
        else:
            self._write("freezer", name, "freezer.state", "THAWED")

    @contextlib.asynccontextmanager
    async def standstill(self, name: str) -> AsyncIterator[None]:
        """No process in it runs during the block. Raises SnapshotError where one did all the same."""
        one_at_a_time = self._standing.setdefault(name, asyncio.Lock())
        async with one_at_a_time:
            try:
                await self._freeze_in_time(name)
                yield
                if not self.is_frozen(name):
                    raise SnapshotError("it was woken, or removed, while its files were copied")
            finally:
                self.thaw(name)

    async def _freeze_in_time(self, name: str) -> None:
        try:
            async with asyncio.timeout(FREEZE_S):
                await self.freeze(name)
        except TimeoutError:
            raise SnapshotError(f"its processes did not stand still within {FREEZE_S:g} s") from None

    async def remove(self, name: str) -> None:
        """Every process in it dies, and it goes. What will not within ``GONE_S`` is left for the reaper."""
        self._emptied.forget(name)
        await self._until(self._try_remove, name)

    async def let_go(self, name: str) -> None:
        """Every process in it dies, and it goes before long: between two starts, where it need not go at once."""
        if self._emptied.has_room:
            if not await self._until(self._is_empty, name):
                return
            if self._emptied.has_room:  # still
                self._emptied.add(name)
                return
        await self.remove(name)

    async def _until(self, done: Callable[[str], bool], name: str) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GONE_S):
                while not done(name):
                    self._kill(name)
                    await asyncio.sleep(RETRY_S)
                return True
        return False

    async def remove_group(self) -> None:
        """The owner's own, once no sandbox has one."""
        await asyncio.gather(*map(self.remove, self._emptied.names))
        await self._emptied.stop()
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
                if read_small_file(f"{root}/{name}/{LIST}"):
                    return False
            except FileNotFoundError:  # it has none here
                continue
            except OSError:  # it is going, or nobody can tell just now
                return False
        return True

    def _kill(self, name: str) -> None:
        if self.unified:
            self._write("", name, "cgroup.kill", "1")
            return
        self.thaw(name)  # the frozen do not die
        for root in self._roots:
            for pid in self._read_at(f"{root}/{name}/{LIST}").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def _place(self, controller: str) -> Path | None:
        places = self._hierarchies.places
        return places.get("" if self.unified else controller)

    def _read(self, controller: str, name: str, file: str) -> str:
        place = self._place(controller)
        return "" if place is None else self._read_at(place / self._group / name / file)

    def _read_at(self, path: str | Path) -> str:
        try:
            return read_small_file(path)
        except OSError:  # it is gone, or going
            return ""

    def _write(self, controller: str, name: str, file: str, value: str) -> None:
        place = self._place(controller)
        if place is not None:
            with contextlib.suppress(OSError):  # it is gone, or going
                write_small_file(place / self._group / name / file, value)

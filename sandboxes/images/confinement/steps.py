"""Detect a build's steps as they start, limit them, and open listeners in their network namespaces.

BuildKit gives each step of ``--network none`` its own network namespace, and writes the step's OCI configuration to a
directory before it starts the step. The build's token in the step's environment identifies its build. Polling detects
the directory within two milliseconds; the step's program begins about ten milliseconds later.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sandboxes.cgroups.cgroups import Hierarchies
from sandboxes.egress import listen_in
from sandboxes.egress.listener import PROXY_PORT
from sandboxes.errors import ImageError, RuntimeUnavailable, SandboxError
from sandboxes.host.uncounted_excess import FindExcess
from sandboxes.images.confinement.disk import DiskMeter, PathTooLong, Uppers
from sandboxes.images.confinement.indexes import MIRROR_PORT
from sandboxes.images.confinement.limits import MIB, BuildLimits, StepGroup, candidates

POLL_S = 0.002
START_POLL_S = 0.0005
CHECK_S = 0.05
MEASURE_EVERY_S = 5.0
SURVEY_S = 1.0
SUSPICIOUS_SURVEYS = 3
"""Surveys in a row that find too much by an estimate, before the build is ended for it."""
APPEAR_S = 30.0
COPIES = 4
"""Multiple of the disk limit for the sum of the engine's own copies between stages and the data that steps write."""
CERTAIN_S, UNCLEAR_S = 0.2, 1.0
"""Seconds for which copies must exceed the limit before the build ends: the progress that counts them is delayed."""


@dataclass(frozen=True, slots=True)
class StepListeners:
    """The two listening sockets in a step's network namespace."""

    step_id: str
    proxy: socket.socket
    mirror: socket.socket


@dataclass(frozen=True, slots=True)
class Reports:
    """Callbacks of the watch, called in its threads: a step's listeners are open, a step ended, the build must end.

    The error that ends a build is ImageError if the build is at fault, otherwise RuntimeUnavailable.
    """

    opened: Callable[[StepListeners], None]
    closed: Callable[[str], None]
    failed: Callable[[SandboxError], None]


@dataclass(slots=True)
class _Step:
    """One build step. ``group`` and ``upper`` are set when the step has started."""

    place: Path
    configuration: dict[str, Any]
    found_at: float
    group: StepGroup | None = None
    upper: Path | None = None
    is_open: bool = False


class StepWatch:
    """Watches the steps of one build from ``start`` until ``stop``.

    ``late``: a step's program ran before its listeners were open, which may be the cause of a failure. ``copies`` is
    the number of the engine's own copies that the build has started; the reader of the progress sets it.
    """

    def __init__(
        self,
        executor: Path,
        token: str,
        limits: BuildLimits,
        hierarchies: Hierarchies,
        reports: Reports,
        find_uncounted_excess: FindExcess | None = None,
    ) -> None:
        self._find_excess = find_uncounted_excess
        self._excess_surveys = self._hidden_surveys = 0
        self._executor = executor
        self._token = token
        self._limits = limits
        self._hierarchies = hierarchies
        self._reports = reports
        self._meter = DiskMeter(executor.parent.parent)
        self._looked_at: set[str] = set()
        self._steps: dict[str, _Step] = {}
        self._uppers: set[Path] = set()
        self._others: set[Path] = set()
        self._over_since: float | None = None
        self._done = threading.Event()
        self._host = os.stat("/proc/self/ns/net")
        self._threads = [
            threading.Thread(target=work, name=f"build-{name}", daemon=True)
            for name, work in (("steps", self._watch), ("limits", self._check_usage))
        ]
        self.late = False
        self.copies = 0

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the watch. Blocks for less than a second."""
        self._done.set()
        for thread in self._threads:
            thread.join()
        self.kill()

    def kill(self) -> None:
        """Kill every process of the build's steps."""
        for step in list(self._steps.values()):
            for process_id in step.group.process_ids() if step.group else ():
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)

    def _watch(self) -> None:
        wait = POLL_S
        while not self._done.wait(wait):
            present = self._step_names()
            for name in present - self._looked_at:
                self._add_step(name)
            self._looked_at &= present
            starting = [step for step in self._steps.values() if not step.is_open]
            for step in starting:
                self._open_listeners(step)
            ended = [name for name in self._steps if name not in present]
            for name in ended:
                del self._steps[name]
                self._reports.closed(name)
            if ended:
                self._share_cpus()
            wait = START_POLL_S if starting else POLL_S

    def _step_names(self) -> set[str]:
        with suppress(OSError):
            return {entry.name for entry in os.scandir(self._executor) if entry.is_dir(follow_symlinks=False)}
        return set()

    def _add_step(self, name: str) -> None:
        """Add the step if it is of this build; its configuration may still be incomplete."""
        place = self._executor / name
        try:
            configuration = json.loads((place / "config.json").read_bytes())
        except (OSError, ValueError):
            return
        self._looked_at.add(name)
        environment = (configuration.get("process") or {}).get("env") or []
        if any(self._token in variable for variable in environment):
            self._steps[name] = _Step(place, configuration, time.monotonic())
        elif upper := _upper(Path(configuration["root"]["path"])):
            self._others.add(upper)

    def _open_listeners(self, step: _Step) -> None:
        """Limit the step's cgroup and listen in its network namespace, as soon as each exists."""
        if step.group is None:
            for group in candidates(self._hierarchies, step.configuration["linux"]["cgroupsPath"]):
                if group.process_ids():
                    self._limit(step, group)
        for process_id in step.group.process_ids() if step.group else ():
            with suppress(OSError):  # the process has ended
                namespace = os.open(f"/proc/{process_id}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if not os.path.samestat(os.fstat(namespace), self._host):
                        self._listen(step, namespace, process_id)
                        return
                finally:
                    os.close(namespace)
        if time.monotonic() - step.found_at > APPEAR_S and not step.is_open:
            step.is_open = True
            self._fail_build("a step's processes cannot be found; look at the engine's cgroup settings")

    def _limit(self, step: _Step, group: StepGroup) -> None:
        step.group = group
        step.upper = _upper(Path(step.configuration["root"]["path"]))
        if step.upper is not None:
            self._uppers.add(step.upper)
        self._write_limits(group, partial(group.limit, self._limits))
        self._share_cpus()

    def _share_cpus(self) -> None:
        """Give each running step an equal part of the build's processors."""
        groups = [step.group for step in self._steps.values() if step.group is not None]
        for group in groups:
            self._write_limits(group, partial(group.limit_cpus, self._limits.cpus / len(groups)))

    def _write_limits(self, group: StepGroup, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if group.process_ids():  # else the step has ended
                self._fail_build(
                    f"a step's limits cannot be set ({error.strerror}); look at the engine's cgroup settings"
                )

    def _listen(self, step: _Step, namespace: int, process_id: int) -> None:
        step.is_open = True
        try:
            with ThreadPoolExecutor(max_workers=1) as thread:
                proxy, mirror = thread.submit(listen_in, namespace, PROXY_PORT, MIRROR_PORT).result()
        except (OSError, RuntimeUnavailable) as error:
            self.late = True
            if step.group is not None and step.group.process_ids():
                self._fail_build(f"the package mirror cannot listen in a build step: {error}")
            return
        with suppress(OSError):
            self.late |= self._token.encode() in Path(f"/proc/{process_id}/environ").read_bytes()
        self._reports.opened(StepListeners(step.place.name, proxy, mirror))

    def _check_usage(self) -> None:
        """Compare the usage of all steps together with the limits."""
        measured_at = surveyed_at = 0.0
        while not self._done.wait(CHECK_S):
            groups = [step.group for step in list(self._steps.values()) if step.group is not None]
            if sum(group.memory_bytes() for group in groups) > self._limits.memory_mib * MIB:
                self._exceed(f"its steps use more than {self._limits.memory_mib} MiB of memory", "build_memory_mib")
            if sum(group.process_count() for group in groups) > self._limits.processes:
                self._exceed(f"its steps have more than {self._limits.processes} processes", "build_processes")
            is_due = time.monotonic() - measured_at > MEASURE_EVERY_S
            if is_due or self._over_since is not None or self._meter.has_shrunk(self._limits.disk_mib * MIB // 16):
                self._measure_disk(groups)
                measured_at = time.monotonic()
            if time.monotonic() - surveyed_at > SURVEY_S:
                self._survey(groups)
                self._look_for_hidden_files(groups)
                surveyed_at = time.monotonic()

    def _survey(self, groups: list[StepGroup]) -> None:
        """End the build if a step holds too much memory that no limit counts: at once if that is certain."""
        excess = self._find_excess({str(group.memory): group.memory for group in groups}) if self._find_excess else None
        self._excess_surveys = 0 if excess is None else self._excess_surveys + 1
        if excess is not None and (excess.is_certain or self._excess_surveys >= SUSPICIOUS_SURVEYS):
            what = f"a step holds too much of the machine's memory that no limit counts ({excess.text})"
            self._blame(f"{what}; hold fewer at a time")

    def _look_for_hidden_files(self, groups: list[StepGroup]) -> None:
        """End the build if its steps go on to hold files whose sizes cannot be read, while the disk has shrunk."""
        process_ids = [process_id for group in groups for process_id in group.process_ids()]
        is_hidden = self._meter.hides_files(self._limits.disk_mib * MIB, process_ids)
        self._hidden_surveys = self._hidden_surveys + 1 if is_hidden else 0
        if self._hidden_surveys >= SUSPICIOUS_SURVEYS:
            self._blame("it keeps deleted files in unix sockets or io_uring, and the disk shrinks; close them")

    def _measure_disk(self, groups: list[StepGroup]) -> None:
        most = self._limits.disk_mib * MIB
        process_ids = [process_id for group in groups for process_id in group.process_ids()]
        try:
            use = self._meter.measure(Uppers(set(self._uppers), set(self._others)), process_ids, self.copies)
        except PathTooLong:
            self._blame("it makes a path that is longer than the kernel takes; nest directories less")
            return
        message = f"it writes more than {self._limits.disk_mib} MiB to the disk"
        if use.steps > most:
            self._exceed(message, "build_disk_mib")
        elif use.steps + use.copies_most <= COPIES * most:
            self._over_since = None
        else:
            self._check_copies(use.steps + use.copies_least > COPIES * most, message)

    def _check_copies(self, is_certain: bool, message: str) -> None:
        """End the build if its copies are too large, or if concurrent builds make it impossible to decide."""
        now = time.monotonic()
        if self._over_since is None:
            self._over_since = now
        elif is_certain and now - self._over_since > CERTAIN_S:
            self._exceed(message, "build_disk_mib")
        elif now - self._over_since > UNCLEAR_S:
            self._fail_build(f"layers that it or another build makes hold more than {COPIES} times build_disk_mib")

    def _exceed(self, reason: str, key: str) -> None:
        self._blame(f"{reason}; lighten the Dockerfile or raise {key}")

    def _blame(self, fault: str) -> None:
        self.kill()
        self._reports.failed(ImageError(fault))

    def _fail_build(self, why: str) -> None:
        self.kill()
        self._reports.failed(RuntimeUnavailable(why))


def _upper(rootfs: Path) -> Path | None:
    """Return the directory that a step writes to, if the engine's storage is overlayfs."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4] == str(rootfs) and after.startswith("overlay "):
            options = dict(option.partition("=")[::2] for option in after.split(" ")[-1].split(","))
            return Path(options["upperdir"]) if "upperdir" in options else None
    return None

"""A process of the farm that is restarted when it dies or hangs: the gateway."""

import asyncio
import contextlib
import logging
import pickle
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from farm.cluster.errors import ClusterError
from farm.cluster.supervisor import describe_exit
from sandboxes.cancellation import cancel_all, shielded

READY = b"ready\n"
_START_S = 60.0
_STOP_S = 15.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0
"""A process that has lived this long starts again after the shortest wait."""

_log = logging.getLogger(__name__)

OnChange = Callable[[int | None, str], None]
"""Called with the process id when the process is ready, and with None and the cause when it has ended.

While the process gives no answer, it is called with the id and with what is known, and with the id alone if the process
answers again.
"""


@dataclass(frozen=True, slots=True)
class Health:
    """How a process shows that it works: it answers at ``url``, with any status.

    The process hangs if ``failures`` probes in a row have had no answer within ``timeout_s`` each. A process with much
    to do answers late now and then, so the bounds are wide.
    """

    url: str
    every_s: float = 5.0
    timeout_s: float = 10.0
    failures: int = 6

    def ends_within_s(self, failed: int = 0) -> float:
        """Return the seconds after which a process that gives no answer has ended, when ``failed`` probes are over."""
        return (self.failures - failed) * (self.every_s + self.timeout_s) + _STOP_S


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to keep: ``python -m module``, which gets ``given`` pickled and inherits ``descriptors``.

    ``name`` and ``log`` are for messages.
    """

    name: str
    module: str
    given: object
    log: Path
    descriptors: Sequence[int] = ()


class KeptProcess:
    """Run a process for the length of an ``async with`` block, and start it again if it dies or hangs.

    The process reads its pickled value from its standard input, and writes ``READY`` to its standard output when it
    serves. Each wait before a restart is twice the last one, up to 30 s. With ``health``, a process that hangs is ended
    first. Entering raises ClusterError if the first start fails.
    """

    def __init__(self, spec: ProcessSpec, *, on_change: OnChange, health: Health | None = None) -> None:
        self._spec = spec
        self._name = spec.name
        self._given = pickle.dumps(spec.given)
        self._on_change = on_change
        self._health = health
        self._process: Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await shielded(self._stop())
            raise
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._keeping is not None:
            await cancel_all({self._keeping})
        await shielded(self._stop())

    async def _start(self) -> None:
        """Return when the process serves. Raises ClusterError."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            self._spec.module,
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=self._spec.descriptors,
            start_new_session=True,  # an interrupt from the terminal is for the farm's own process
        )
        assert process.stdin is not None
        assert process.stdout is not None
        cause = ""
        try:
            async with asyncio.timeout(_START_S):
                with contextlib.suppress(ConnectionError):  # it has ended before it read all
                    process.stdin.write(self._given)
                    await process.stdin.drain()
                    process.stdin.close()
                if await process.stdout.readline() == READY:
                    self._report_change(process.pid, "")
                    return
                await process.wait()  # a signal to a process that has just ended would lose its exit code
        except TimeoutError:
            cause = f"it was not ready in {_START_S:.0f} s"
        await shielded(self._stop())
        assert process.returncode is not None
        cause = cause or f"its process {describe_exit(process.returncode)}"
        raise ClusterError(f"the {self._name} did not start: {cause}; its log is {self._spec.log}")

    def _report_change(self, pid: int | None, cause: str) -> None:
        """Call ``on_change``. A full disk must not end the keeping."""
        try:
            self._on_change(pid, cause)
        except OSError as error:
            _log.warning("the state of the %s could not be written: %s", self._name, error)

    def _report_silence(self, pid: int, health: Health, failed: int) -> None:
        if not failed:
            self._report_change(pid, "")
            return
        ended_by = datetime.fromtimestamp(time.time() + health.ends_within_s(failed), UTC)
        self._report_change(
            pid,
            f"{failed} of {health.failures} requests in a row had no answer; "
            f"unless it answers, it is ended by {ended_by:%H:%M:%S} UTC and started again",
        )

    async def _keep(self) -> None:
        """Start the process again whenever it has ended or hangs."""
        wait_s = _FIRST_WAIT_S
        while True:
            assert self._process is not None
            began = time.monotonic()
            cause = await self._end_of(self._process)
            if time.monotonic() - began >= _STEADY_S:
                wait_s = _FIRST_WAIT_S
            while True:
                self._report_change(None, cause)
                _log.error("the %s is away: %s; it starts again in %.1f s", self._name, cause, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                try:
                    await self._start()
                    break
                except (ClusterError, OSError) as error:
                    cause = str(error)
            _log.warning("the %s serves again, as process %d", self._name, self._process.pid)

    async def _end_of(self, process: Process) -> str:
        """Wait until the process has ended, and end it if it hangs. Return the cause."""
        ending = asyncio.create_task(process.wait())
        watching: set[asyncio.Task[int]] = {ending}
        if self._health is not None:
            on_failures = partial(self._report_silence, process.pid, self._health)
            watching.add(asyncio.create_task(_hangs(self._health, on_failures)))
        try:
            await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                return f"its process {describe_exit(ending.result())}"
        finally:
            await cancel_all(watching)
        assert self._health is not None
        cause = f"process {process.pid} hung: {self._health.failures} requests of {self._health.url} had no answer"
        _log.error("the %s is ended: %s", self._name, cause)
        await shielded(self._stop())
        return cause

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_S)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _hangs(health: Health, on_failures: Callable[[int], None]) -> int:
    """Return the number of probes that had no answer, when there are enough of them in a row.

    ``on_failures`` is called with each change of the number.
    """
    failures = 0
    # Each probe has a connection of its own, because a process that hangs may still serve an old one.
    fresh = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, verify=False, limits=fresh, timeout=health.timeout_s) as client:
        while failures < health.failures:
            await asyncio.sleep(health.every_s)
            try:
                async with asyncio.timeout(health.timeout_s):
                    await client.get(health.url)
                if failures:
                    on_failures(0)
                failures = 0
            except (httpx.HTTPError, OSError) as error:
                failures += 1
                on_failures(failures)
                what = f"{type(error).__name__} {error}".strip()
                _log.warning("%s has no answer: %s (%d of %d)", health.url, what, failures, health.failures)
    return failures

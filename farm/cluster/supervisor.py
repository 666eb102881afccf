"""The supervisor: a process that outlives the farm, because a Ray driver that loses its cluster may end its process
silently.

The supervisor holds no lock and no connection, and acts only when the farm's own process has ended.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S = 30.0
"""Seconds that redis-server and Ray have to end before they are killed."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended.

    ``code`` is as in ``subprocess``: negative if a signal ended it. ``orderly``: the Python interpreter ran to its end.
    """

    code: int
    orderly: bool
    started_at: float

    @property
    def how(self) -> str:
        return describe_exit(self.code)


def describe_exit(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def fork_supervisor(on_death: Callable[[ExitStatus], None] = lambda ended: None) -> ExitStatus | None:
    """Fork. Return None in the child, and in the parent the child's exit status when all its descendants are gone.

    If the child did not end in order, ``on_death`` is called before the child's descendants are ended. SIGINT and
    SIGTERM are passed on to the child, also those that arrive during the fork. The child gets SIGTERM if this process
    dies.
    """
    started_at, parent = time.time(), os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    read_end, write_end = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read_end)
        end_with(parent)
        atexit.register(os.write, write_end, b".")
        return None
    os.close(write_end)

    def pass_on(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code, orderly = _await(child), False
    os.set_blocking(read_end, False)
    with contextlib.suppress(BlockingIOError):  # a descendant still holds the write end
        orderly = os.read(read_end, 1) == b"."
    ended = ExitStatus(code, orderly, started_at)
    if not orderly:
        on_death(ended)
    end_processes(psutil.Process().children(recursive=True), _PATIENCE_S)
    return ended


def end_with(parent: int) -> None:
    """End this process by SIGTERM when its parent dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def end_processes(processes: list[psutil.Process], patience_s: float) -> None:
    """Terminate all processes, kill those that have not ended in time, and return when all have ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=patience_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_PATIENCE_S)


def _await(child: int) -> int:
    """Return the exit code of the child. Meanwhile reap the farm's orphans, whose parent this process became."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")

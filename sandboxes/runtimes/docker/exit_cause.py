"""Decide why a container ended, and who caused it.

| container                                                               | caused by |
|-------------------------------------------------------------------------|-----------|
| removed or paused, or the daemon does not answer                        | `OUTSIDE` |
| its init process lives, but the tool server does not answer             | `INSIDE`  |
| killed, not through the daemon, soon after its own memory limit was     | `MEMORY`  |
| reached                                                                 |           |
| killed otherwise, or the daemon missed its end                          | `OUTSIDE` |
| ended with any other status                                             | `INSIDE`  |

The init process has no signal handlers. So no signal from inside reaches it, and only SIGKILL and SIGSTOP from outside:
every other death is a crash or an exit of its own.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandboxes.docker_engine.answers import ContainerState
from sandboxes.docker_engine.api import Engine, EngineError
from sandboxes.errors import LossCause, RuntimeUnavailable
from sandboxes.runtimes.base import ExitCause

STOPPING_S = 3.0
"""Maximum time that the daemon may need to notice the end of an init process."""

STOPPING_ROUNDS = 10
"""Number of such waits while the init process is ending, because it waits for all other processes inside to die."""

OOM_TO_END_NS = 30_000_000_000
"""An init process that is killed within this time after an OOM event was the target of the OOM kill. The daemon sees
its end only when all processes inside are dead, which takes seconds if they share little CPU time."""

KILLED = 128 + 9
END_NOT_SEEN = 255
"""Exit status of a container whose end the daemon did not see, because it or its shim was not running."""

_EXITING = 0x4
"""PF_EXITING of a process's flags, proc_pid_stat(5)."""


async def find_exit_cause(
    engine: Engine, container: str, reached_limit: Callable[[], bool | None] = lambda: None
) -> ExitCause:
    """Return why a container's tool server no longer answers. Never raises.

    ``reached_limit``: whether the container recently reached its own memory limit, None if unknown. The daemon alone
    cannot say whose limit caused an OOM kill.
    """
    try:
        state = await _wait_for_state(engine, container)
        if state is not None and await _was_oom_killed(engine, container, state, reached_limit()):
            return ExitCause(f"it ran out of memory (exit status {state.exit_code})", LossCause.MEMORY)
    except (EngineError, RuntimeUnavailable) as error:
        return ExitCause(str(error), LossCause.OUTSIDE)
    return ExitCause(describe(state), caused_by(state))


def caused_by(state: ContainerState | None) -> LossCause:
    """Return who caused the end of a container that did not run out of memory."""
    if state is None or state.paused:
        return LossCause.OUTSIDE
    return LossCause.INSIDE if state.running or state.exit_code not in (KILLED, END_NOT_SEEN) else LossCause.OUTSIDE


def describe(state: ContainerState | None) -> str:
    if state is None:
        return "its container was removed"
    if state.paused:
        return "its container is paused"
    if state.running:
        return "its container still runs"
    return f"its first process ended with status {state.exit_code}{' ' * bool(state.error)}{state.error}"


async def _wait_for_state(engine: Engine, container: str) -> ContainerState | None:
    """Return the container's state, after the daemon has noticed the end of the init process if that is ending."""
    rounds_left = STOPPING_ROUNDS
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOPPING_S):
                await engine.until_stopped(container)
        state = await engine.state(container)
        if state is None or not state.running or not is_ending(state.pid):
            return state
        rounds_left -= 1
        if not rounds_left:
            return replace(state, running=False, exit_code=END_NOT_SEEN)


def is_ending(pid: int) -> bool:
    """Return True if a process has ended or is about to."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(after_name[6]) & _EXITING)


async def _was_oom_killed(engine: Engine, container: str, state: ContainerState, reached: bool | None) -> bool:
    """Return True if the init process was killed by an OOM kill for the container's own limit.

    ``OOMKilled`` may come from an earlier kill inside, so the times of events are compared. It may also come after the
    end, so if the limit was ``reached`` the exit status is enough.
    """
    certain = reached is True and state.exit_code == KILLED
    if state.running or reached is False or not (certain or state.out_of_memory):
        return False
    horizon_s = 2 * OOM_TO_END_NS / 1e9
    ends, oom_events, kills = [
        await engine.event_times_ns(container, event, last_s=horizon_s) for event in ("die", "oom", "kill")
    ]
    soon = any(abs(end - oom) < OOM_TO_END_NS for end in ends[-1:] for oom in oom_events)
    return (certain or soon) and not kills

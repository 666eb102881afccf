"""How a container ended, and by whose doing.

| what is found                                                           | by        |
|-------------------------------------------------------------------------|-----------|
| the container is gone or paused, or the daemon does not answer          | `OUTSIDE` |
| its first process lives, and yet the tool server did not answer         | `INSIDE`  |
| it was killed, not through the daemon, soon after its own memory limit  | `MEMORY`  |
| was reached                                                             |           |
| it was killed otherwise, or the daemon missed its end                   | `OUTSIDE` |
| it ended with any other status                                          | `INSIDE`  |

The first process has no handler for any signal. So from inside none reaches it, and from outside SIGKILL and SIGSTOP
alone: every other death is a crash or an exit of its own.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandboxes.docker_engine.api import ContainerState, Engine, EngineError
from sandboxes.errors import LossCause, RuntimeUnavailable
from sandboxes.runtimes.base import ExitCause

STOPPING_S = 3.0
"""How long the daemon may need to notice that a first process has ended."""

ROUNDS = 10
"""How often that is waited for while the first process is seen to end: it waits for all others inside to be dead."""

OOM_TO_END_NS = 30_000_000_000
"""A first process that is killed this soon after the kernel killed for memory was what it killed. The daemon sees its
end only when all others inside are dead as well, which takes them seconds where they share little of a processor."""

KILLED = 128 + 9
MISSED = 255
"""The status of a container whose end the daemon did not see, because it or its shim was away."""

_EXITING = 0x4
"""PF_EXITING among a process's flags, proc_pid_stat(5)."""


async def ending(engine: Engine, container: str, reached_limit: Callable[[], bool | None] = lambda: None) -> ExitCause:
    """What became of a container whose tool server no longer answers. Never raises.

    ``reached_limit``: whether it came to its own memory limit of late, None where nobody knows. To the daemon a kill
    for memory is one, whoever's limit was reached.
    """
    try:
        state = await _settled(engine, container)
        if state is not None and await _starved(engine, container, state, reached_limit()):
            return ExitCause(f"it ran out of memory (exit status {state.exit_code})", LossCause.MEMORY)
    except (EngineError, RuntimeUnavailable) as error:
        return ExitCause(str(error), LossCause.OUTSIDE)
    return ExitCause(describe(state), by_whom(state))


def by_whom(state: ContainerState | None) -> LossCause:
    """``state`` is of a container that did not run out of memory; one that runs is known to live."""
    if state is None or state.paused:
        return LossCause.OUTSIDE
    return LossCause.INSIDE if state.running or state.exit_code not in (KILLED, MISSED) else LossCause.OUTSIDE


def describe(state: ContainerState | None) -> str:
    if state is None:
        return "its container was removed"
    if state.paused:
        return "its container is paused"
    if state.running:
        return "its container still runs"
    return f"its first process ended with status {state.exit_code}{' ' * bool(state.error)}{state.error}"


async def _settled(engine: Engine, container: str) -> ContainerState | None:
    """Its state once the daemon has noticed an end of the first process; as it is, where that process lives on."""
    rounds_left = ROUNDS
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOPPING_S):
                await engine.until_stopped(container)
        state = await engine.state(container)
        if state is None or not state.running or not is_ending(state.pid):
            return state
        rounds_left -= 1
        if not rounds_left:
            return replace(state, running=False, exit_code=MISSED)


def is_ending(pid: int) -> bool:
    """Whether a process has ended, or is about to."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(after_name[6]) & _EXITING)


async def _starved(engine: Engine, container: str, state: ContainerState, reached: bool | None) -> bool:
    """The daemon's mark says only that something inside was once killed for memory, so the times are asked; and it may
    come after the end, so where it is known that the limit was ``reached`` the status says enough."""
    known = reached is True and state.exit_code == KILLED
    if state.running or reached is False or not (known or state.out_of_memory):
        return False
    horizon_s = 2 * OOM_TO_END_NS / 1e9
    ends, hungers, kills = [
        await engine.event_times_ns(container, event, last_s=horizon_s) for event in ("die", "oom", "kill")
    ]
    soon = any(abs(end - hunger) < OOM_TO_END_NS for end in ends[-1:] for hunger in hungers)
    return (known or soon) and not kills

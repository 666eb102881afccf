"""How a container ended, and whether what ran inside is to blame."""

import asyncio
import contextlib
from dataclasses import dataclass

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.engine import ContainerState, Engine, EngineError

STOPPING_S = 3.0
"""How long the daemon may need to notice that a first process has ended."""

OOM_TO_END_NS = 1_000_000_000
"""A first process that ends this soon after the kernel killed for memory was what it killed."""


@dataclass(frozen=True, slots=True)
class Ending:
    reason: str
    out_of_memory: bool = False


async def ending(engine: Engine, container: str) -> Ending:
    """What became of a container whose tool server no longer answers. Never raises."""
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOPPING_S):
                await engine.until_stopped(container)
        state = await engine.state(container)
        if state is not None and await _starved(engine, container, state):
            return Ending(f"it ran out of memory (exit status {state.exit_code})", out_of_memory=True)
    except (EngineError, RuntimeUnavailable) as error:
        return Ending(str(error))
    return Ending(describe(state))


async def _starved(engine: Engine, container: str, state: ContainerState) -> bool:
    """The daemon's mark says only that something in the container was once killed for memory; so its time is asked."""
    if state.running or not state.out_of_memory:
        return False
    ends, kills = [await engine.event_times_ns(container, event, last_s=10 * STOPPING_S) for event in ("die", "oom")]
    return any(abs(end - kill) < OOM_TO_END_NS for end in ends[-1:] for kill in kills)


def describe(state: ContainerState | None) -> str:
    if state is None:
        return "its container was removed"
    if state.running:
        return "its container still runs"
    return f"its first process ended with status {state.exit_code}{' ' * bool(state.error)}{state.error}"

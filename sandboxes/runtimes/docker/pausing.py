"""Pause a container, and let it go on. Both run to their end: a late answer of the daemon would leave it paused."""

import contextlib

from sandboxes.docker_engine.api import Engine, EngineError
from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.docker.exit_cause import is_ending


async def pause(engine: Engine, container: str) -> bool:
    """Pause a container. Return False if it has ended. Raises EngineError if it runs on, and RuntimeUnavailable."""
    try:
        await engine.pause(container)
    except EngineError:
        state = await engine.state(container)
        if state is None or not state.running or is_ending(state.pid):
            return False
        if not state.paused:
            raise
    return True


async def unpause(engine: Engine, container: str) -> None:
    """Unpause a container. Retry once if the daemon answers late, or the container would stay paused."""
    try:
        await engine.unpause(container)
    except EngineError:  # the container has ended, was removed, or was not paused
        return
    except RuntimeUnavailable:
        with contextlib.suppress(EngineError, RuntimeUnavailable):
            await engine.unpause(container)

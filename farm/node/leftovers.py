"""What a node agent leaves on its machine that did not close, for it is stuck or was killed."""

from collections.abc import Callable

from farm.config import Config
from farm.node.resources import AGENT_OWNER
from sandboxes import RuntimeUnavailable, open_runtime
from sandboxes.ownership.owner import owner_names


async def reap(config: Config, say: Callable[[str], None]) -> None:
    """Remove its sandboxes and say how many: in the agent's name, for which they would be spared for a while."""
    if not owner_names(config.state_dir):
        return
    try:
        runtime = await open_runtime(
            config.runtime, state_dir=config.state_dir, owner=AGENT_OWNER, docker_host=config.docker_host
        )
    except RuntimeUnavailable:  # without a daemon there is no sandbox either
        return
    try:
        removed = await runtime.reap()
    finally:
        await runtime.close()
    if removed:
        say(f"removed {removed} sandboxes that nobody owned any more")

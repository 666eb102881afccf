"""The second end of life: whatever carries our label and belongs to an owner that is dead goes.

It cannot take what is being made just now: containers are listed first and their owners judged afterwards, and an owner
is alive before it makes its first container. An owner is judged by its lock in the state directory that its containers
name, so that farms with different state directories leave each other's alone. Sandboxes that are no containers are
found by their owner's control group.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from sandboxes.errors import SandboxError
from sandboxes.owner import estate, owner_names
from sandboxes.runtimes.container import LABEL_OWNER, LABEL_SANDBOX, LABEL_STATE_DIR
from sandboxes.runtimes.engine import Engine, ListedContainer
from sandboxes.runtimes.oci.cgroups import Cgroups, find_hierarchies, group_of

log = logging.getLogger(__name__)


async def reap(engine: Engine, state_dir: Path) -> int:
    """Remove what dead owners left, on the whole machine; how many sandboxes that were.

    ``state_dir`` as ``Owner.state_dir`` has it. Several reapers may run at once. What cannot be removed is logged and
    tried again by the next.
    """
    left: defaultdict[tuple[Path, str], list[ListedContainer]] = defaultdict(list)
    for container in await engine.containers(LABEL_OWNER):
        home = Path(container.labels.get(LABEL_STATE_DIR, state_dir))
        left[home, container.labels[LABEL_OWNER]].append(container)
    for name in owner_names(state_dir):
        left[state_dir, name]  # an owner that left only a directory
    return sum([await _bury(engine, home, name, containers) for (home, name), containers in left.items()])


async def _bury_groups(home: Path, name: str) -> int:
    cgroups = Cgroups(find_hierarchies(), group_of(home, name))
    names = cgroups.names()
    await asyncio.gather(*map(cgroups.remove, names))
    cgroups.remove_group()
    return len(names)


async def _bury(engine: Engine, home: Path, name: str, containers: Sequence[ListedContainer]) -> int:
    sandboxes = [container.id for container in containers if LABEL_SANDBOX in container.labels]
    try:
        with estate(home, name) as dead:
            if not dead:
                return 0
            buried = await engine.remove_all(sandboxes) + await _bury_groups(home, name)
            # What holds an image goes after the sandboxes that are made of it.
            await engine.remove_all(container.id for container in containers if container.id not in sandboxes)
            return buried
    except (SandboxError, OSError) as error:
        log.warning("what owner %s left in %s stays for now: %s", name, home, error)
        return 0

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
from sandboxes.runtimes.container import LABEL_OWNER, LABEL_SANDBOX, LABEL_SNAPSHOT, LABEL_STATE_DIR
from sandboxes.runtimes.engine import Engine, ListedContainer, ListedImage
from sandboxes.runtimes.oci.cgroups import Cgroups, find_hierarchies, group_of

log = logging.getLogger(__name__)


async def reap(engine: Engine, state_dir: Path) -> int:
    """Remove what dead owners left, on the whole machine; how many sandboxes that were.

    ``state_dir`` as ``Owner.state_dir`` has it. Several reapers may run at once. What cannot be removed is logged and
    tried again by the next.
    """
    left: defaultdict[tuple[Path, str], list[ListedContainer | ListedImage]] = defaultdict(list)
    listed: list[ListedContainer | ListedImage] = [*await engine.containers(LABEL_OWNER)]
    for found in (*listed, *await engine.images(LABEL_SNAPSHOT)):
        home = Path(found.labels.get(LABEL_STATE_DIR, state_dir))
        left[home, found.labels[LABEL_OWNER]].append(found)
    for name in owner_names(state_dir):
        left[state_dir, name]  # an owner that left only a directory
    return sum([await _bury(engine, home, name, things) for (home, name), things in left.items()])


async def bury_containers(engine: Engine, state_dir: Path, name: str) -> None:
    """Of an owner whose sandboxes are containers no longer."""
    mine = {LABEL_OWNER: name, LABEL_STATE_DIR: str(state_dir)}
    found = await engine.containers(LABEL_SANDBOX)
    await engine.remove_all(container.id for container in found if mine.items() <= container.labels.items())
    images = await engine.images(LABEL_SNAPSHOT)
    await engine.remove_images(image.id for image in images if mine.items() <= image.labels.items())


async def bury_groups(home: Path, name: str) -> int:
    """The sandboxes of an owner that are no containers; how many."""
    cgroups = Cgroups(find_hierarchies(), group_of(home, name))
    names = cgroups.names()
    await asyncio.gather(*map(cgroups.remove, names))
    cgroups.remove_group()
    return len(names)


async def _bury(engine: Engine, home: Path, name: str, left: Sequence[ListedContainer | ListedImage]) -> int:
    containers = [thing for thing in left if isinstance(thing, ListedContainer)]
    sandboxes = [container.id for container in containers if LABEL_SANDBOX in container.labels]
    try:
        with estate(home, name) as dead:
            if not dead:
                return 0
            buried = await engine.remove_all(sandboxes) + await bury_groups(home, name)
            # What holds an image goes after the sandboxes that are made of it.
            await engine.remove_all(container.id for container in containers if container.id not in sandboxes)
            await engine.remove_images(thing.id for thing in left if isinstance(thing, ListedImage))
            return buried
    except (SandboxError, OSError) as error:
        log.warning("what owner %s left in %s stays for now: %s", name, home, error)
        return 0

"""Remove what dead owners left: all that has the farm's labels (``sandboxes.ownership.labels``) and no living owner.

It cannot take what is being made just now: containers are listed first and their owners judged afterwards, and an owner
is alive before it makes its first container. An owner is judged by its lock in the state directory that its containers
name, so that farms with different state directories leave each other's alone; and where that directory is not to be
seen, by its trace (``sandboxes.ownership.owner``). Sandboxes without a container are found by their control group.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.cgroups.cgroups import Cgroups, find_hierarchies
from sandboxes.docker_engine.api import Engine
from sandboxes.errors import SandboxError
from sandboxes.ownership.labels import LABEL_OWNER, LABEL_SNAPSHOT, of_container, of_image
from sandboxes.ownership.owner import Identity, bury_if_dead, group_of, is_dead_by_trace, owner_names
from sandboxes.ownership.scratch_dirs import sweep

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Left:
    """What there is of an owner at the daemon, by ids."""

    sandboxes: list[str] = field(default_factory=list)
    pins: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    traces: set[str] = field(default_factory=set)


async def reap(engine: Engine, state_dir: Path) -> int:
    """Remove what dead owners left, on the whole machine; how many sandboxes that were.

    ``state_dir`` as ``Owner.state_dir`` has it. Several reapers may run at once. What cannot be removed is logged and
    tried again by the next.
    """
    found = await _left_at(engine)
    for name in owner_names(state_dir):
        found[Identity.here(state_dir, name)]  # an owner that left only a directory
    buried = sum([await _bury(engine, state_dir, owner, left) for owner, left in found.items()])
    await asyncio.to_thread(sweep)
    return buried


async def _left_at(engine: Engine) -> defaultdict[Identity, _Left]:
    """All that is ours at the daemon, of the living too."""
    found: defaultdict[Identity, _Left] = defaultdict(_Left)
    for container in await engine.containers(LABEL_OWNER):
        if mark := of_container(container):
            left = found[mark.owner]
            (left.sandboxes if mark.sandbox else left.pins).append(container.id)
            left.traces.add(mark.trace)
    for image in await engine.images(LABEL_SNAPSHOT):
        if mark := of_image(image):
            found[mark.owner].images.append(image.id)
            found[mark.owner].traces.add(mark.trace)
    return found


async def bury_containers(engine: Engine, owner: Identity) -> None:
    """Of an owner whose sandboxes are containers no longer."""
    left = (await _left_at(engine))[owner]
    await engine.remove_all(left.sandboxes)
    await engine.remove_images(left.images)


async def bury_groups(owner: Identity) -> int:
    """The sandboxes of an owner that are no containers; how many."""
    cgroups = Cgroups(find_hierarchies(), group_of(owner))
    names = cgroups.names()
    await asyncio.gather(*map(cgroups.remove, names))
    await cgroups.remove_group()
    return len(names)


async def _bury(engine: Engine, state_dir: Path, owner: Identity, left: _Left) -> int:
    try:
        with _dead_for_good(owner, left, state_dir) as dead:
            if not dead:
                return 0
            buried = await engine.remove_all(left.sandboxes) + await bury_groups(owner)
            # What holds an image goes after the sandboxes that are made of it.
            await engine.remove_all(left.pins)
            await engine.remove_images(left.images)
            return buried
    except (SandboxError, OSError) as error:
        log.warning("what owner %s left in %s stays for now: %s", owner.name, owner.state_dir, error)
        return 0


@contextlib.contextmanager
def _dead_for_good(owner: Identity, left: _Left, state_dir: Path) -> Iterator[bool]:
    if not left.traces or owner.is_state_dir_visible:
        with bury_if_dead(owner.state_dir, owner.name) as dead:
            yield dead
    else:
        yield is_dead_by_trace(owner, left.traces, state_dir)

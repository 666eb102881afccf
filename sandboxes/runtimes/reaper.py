"""Remove what dead owners left: everything with the farm's labels (``sandboxes.ownership.labels``) and no living owner.

A sandbox that is being created is safe: containers are listed first and owners checked afterwards, and an owner claims
its name before it creates a container. An owner is checked by its lock in the state directory that its containers name,
so farms with different state directories do not affect each other. If that directory cannot be seen, its trace decides
(``sandboxes.ownership.owner``). Sandboxes without a container are found by their cgroup.
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
from sandboxes.ownership.labels import LABEL_OWNER, LABEL_SNAPSHOT, labels_of_container, labels_of_snapshot
from sandboxes.ownership.owner import Identity, bury_if_dead, group_of, is_dead_by_trace, owner_names
from sandboxes.ownership.scratch_dirs import sweep
from sandboxes.runtimes.docker.pausing import unpause

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Leftovers:
    """Ids of an owner's containers and images at the daemon. ``paused`` are among ``sandboxes``."""

    paused: list[str] = field(default_factory=list)
    sandboxes: list[str] = field(default_factory=list)
    pins: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    traces: set[str] = field(default_factory=set)


async def reap(engine: Engine, state_dir: Path) -> int:
    """Remove what dead owners left on the whole machine. Return the number of sandboxes.

    ``state_dir``: as ``Owner.state_dir``. Several reapers may run concurrently. What cannot be removed is logged, and
    retried by the next reaper.
    """
    found = await _find_leftovers(engine)
    for name in owner_names(state_dir):
        found[Identity.here(state_dir, name)]  # add owners that left only a directory
    removed = sum([await _remove_if_dead(engine, state_dir, owner, leftovers) for owner, leftovers in found.items()])
    await asyncio.to_thread(sweep)
    return removed


async def _find_leftovers(engine: Engine) -> defaultdict[Identity, _Leftovers]:
    """Return all containers and images of the farm by owner, living owners included."""
    found: defaultdict[Identity, _Leftovers] = defaultdict(_Leftovers)
    for container in await engine.containers(LABEL_OWNER):
        if owner_labels := labels_of_container(container):
            leftovers = found[owner_labels.owner]
            (leftovers.sandboxes if owner_labels.sandbox else leftovers.pins).append(container.id)
            leftovers.paused += [container.id] * container.paused
            leftovers.traces.add(owner_labels.trace)
    for image in await engine.images(LABEL_SNAPSHOT):
        if owner_labels := labels_of_snapshot(image):
            found[owner_labels.owner].images.append(image.id)
            found[owner_labels.owner].traces.add(owner_labels.trace)
    return found


async def remove_containers(engine: Engine, owner: Identity) -> None:
    """Remove the Docker containers of an owner that now uses the oci runtime."""
    leftovers = (await _find_leftovers(engine))[owner]
    await engine.remove_all(leftovers.sandboxes)
    await engine.remove_images(leftovers.images)


async def remove_cgroups(owner: Identity) -> int:
    """Remove the sandboxes of an owner that are no containers. Return their number."""
    cgroups = Cgroups(find_hierarchies(), group_of(owner))
    names = cgroups.names()
    await asyncio.gather(*map(cgroups.remove, names))
    await cgroups.remove_group()
    return len(names)


async def _remove_if_dead(engine: Engine, state_dir: Path, owner: Identity, leftovers: _Leftovers) -> int:
    try:
        with _dead_for_good(owner, leftovers, state_dir) as dead:
            if not dead:
                return 0
            for container in leftovers.paused:
                await unpause(engine, container)
            removed = await engine.remove_all(leftovers.sandboxes) + await remove_cgroups(owner)
            # Pins go after the sandboxes that use their images.
            await engine.remove_all(leftovers.pins)
            await engine.remove_images(leftovers.images)
            return removed
    except (SandboxError, OSError) as error:
        log.warning(
            "leftovers of dead owner %s in %s were not removed; the next reaper retries: %s",
            owner.name,
            owner.state_dir,
            error,
        )
        return 0


@contextlib.contextmanager
def _dead_for_good(owner: Identity, leftovers: _Leftovers, state_dir: Path) -> Iterator[bool]:
    """Yield True if the owner is dead and its grace is over."""
    if not leftovers.traces or owner.is_state_dir_visible:
        with bury_if_dead(owner.state_dir, owner.name) as dead:
            yield dead
    else:
        yield is_dead_by_trace(owner, leftovers.traces, state_dir)

"""What the kernel shares out by user, and not by control group: one sandbox takes all, another needs some.

On Docker, which maps no users, all sandboxes are the machine's root, and share with it what it has of these: instances
and watches of inotify, pages in pipes, descriptors on their way, message queues, pending signals, terminals. There only
what every sandbox has of its own is tried.
"""

import contextlib

import pytest

from sandboxes import SandboxGone
from tests.attacks.machine.conftest import Scene

NEEDS = {
    "inotify": 16,
    "watches": 500,
    "pipes": 1024,
    "inflight": 50,
    "queues": 4,
    "signals": 100,
    "epoll": 1000,
    "memlock": 1024,
    "ptys": 8,
    "segments": 64,
    "files": 200,
}
"""What an ordinary program may ask for."""

pytestmark = pytest.mark.xdist_group("shares")


async def sibling_has_its_share(scene: Scene, kind: str) -> None:
    with contextlib.suppress(SandboxGone):  # it was killed for the memory that all this takes
        await scene.attack(f"hog {kind} 20000 8")
    assert await scene.hog(kind, by=scene.sibling, at_most=NEEDS[kind]) == NEEDS[kind]
    async with scene.runtime.scope(scene.sibling.spec) as newcomer:
        assert await scene.hog(kind, by=newcomer, at_most=NEEDS[kind]) == NEEDS[kind]


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
@pytest.mark.parametrize("kind", NEEDS)
async def test_sibling_keeps_its_share(after_an_attack: Scene, kind: str) -> None:
    await sibling_has_its_share(after_an_attack, kind)


@pytest.mark.parametrize("either_runtime", ["docker"], indirect=True)
@pytest.mark.parametrize("kind", ["memlock", "segments", "files"])
async def test_sibling_on_docker_keeps_its_share(after_an_attack: Scene, kind: str) -> None:
    await sibling_has_its_share(after_an_attack, kind)


async def test_aio_contexts_are_unavailable(after_an_attack: Scene) -> None:
    """The machine counts these contexts for all sandboxes together."""
    assert await after_an_attack.hog("aio") == 0

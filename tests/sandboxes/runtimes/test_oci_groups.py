"""Groups that nothing is in any more go between the starts of sandboxes, in the machine's own control groups."""

import asyncio
import os
import resource
import signal
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from sandboxes.cgroups.cgroups import Cgroups, find_hierarchies
from sandboxes.cgroups.deferred_removal import MAX_WAITING, QUIET_S
from sandboxes.ownership.owner import Identity, group_of
from tests.support.services import missing

HIERARCHIES = find_hierarchies().needed()
MANY = [f"box-{number}" for number in range(MAX_WAITING + 4)]


@pytest.fixture
def owner(tmp_path: Path) -> Identity:
    if os.geteuid() != 0:
        missing("root", "control groups need it")
    return Identity(tmp_path, "groups", "seal")


@pytest.fixture
async def groups(owner: Identity) -> AsyncIterator[Cgroups]:
    made = Cgroups(HIERARCHIES, group_of(owner))
    yield made
    await made.remove_group()
    assert not any((root / group_of(owner)).exists() for root in HIERARCHIES.roots)


def make(owner: Identity, *names: str) -> None:
    """As an OCI runtime does."""
    for root in HIERARCHIES.roots:
        for name in names:
            (root / group_of(owner) / name).mkdir(parents=True)


def there(owner: Identity) -> set[str]:
    """As anybody else sees it."""
    return Cgroups(HIERARCHIES, group_of(owner)).names()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.001)


async def test_deferred_cgroup_stays_during_starts(owner: Identity, groups: Cgroups) -> None:
    make(owner, "old", "living")
    async with groups.starting("one"):
        async with groups.starting("another"):
            await groups.remove_later("old")
        await asyncio.sleep(10 * QUIET_S)  # it would have gone by then, were none started
        assert there(owner) == {"old", "living"}
        assert groups.names() == {"living"}
    await until(lambda: there(owner) == {"living"})
    await groups.remove("living")


@asynccontextmanager
async def sleeping(owner: Identity, name: str) -> AsyncIterator[Process]:
    """Somebody in that group."""
    sleeper = await asyncio.create_subprocess_exec("sleep", "600")
    try:
        for root in HIERARCHIES.roots:
            (root / group_of(owner) / name / "cgroup.procs").write_text(str(sleeper.pid))
        yield sleeper
    finally:
        if sleeper.returncode is None:
            sleeper.kill()
            await sleeper.wait()


async def test_deferred_removal_kills_processes_first(owner: Identity, groups: Cgroups) -> None:
    make(owner, "box")
    async with sleeping(owner, "box") as sleeper, groups.starting("other"):
        await groups.remove_later("box")
        assert await asyncio.wait_for(sleeper.wait(), 60) == -signal.SIGKILL
        assert there(owner) == {"box"}
    await until(lambda: not there(owner))


async def test_unreadable_cgroup_is_not_empty(owner: Identity, groups: Cgroups) -> None:
    make(owner, "box")
    async with sleeping(owner, "box") as sleeper:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            letting_go = asyncio.create_task(groups.remove_later("box"))
            await asyncio.sleep(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await letting_go
        assert await asyncio.wait_for(sleeper.wait(), 60) == -signal.SIGKILL
    await until(lambda: not there(owner))


async def test_occupied_cgroup_is_left_to_reaper(owner: Identity, groups: Cgroups) -> None:
    make(owner, "box", "other")
    async with AsyncExitStack() as living:
        async with groups.starting("one"):
            await groups.remove_later("box")
            await groups.remove_later("other")
            sleeper = await living.enter_async_context(sleeping(owner, "box"))
        await until(lambda: there(owner) == groups.names() == {"box"})
        await groups.remove_later("box")
        assert await asyncio.wait_for(sleeper.wait(), 60) == -signal.SIGKILL
    await until(lambda: not there(owner))


async def test_number_of_waiting_cgroups_is_limited(owner: Identity, groups: Cgroups) -> None:
    make(owner, *MANY)
    async with groups.starting("other"):
        for name in MANY:
            await groups.remove_later(name)
        assert there(owner) == set(MANY[:MAX_WAITING])
    await until(lambda: not there(owner))


async def test_waiting_limit_holds_for_concurrent_removals(owner: Identity, groups: Cgroups) -> None:
    make(owner, *MANY)
    async with AsyncExitStack() as living:
        for name in MANY:
            await living.enter_async_context(sleeping(owner, name))
        async with groups.starting("other"):
            await asyncio.gather(*map(groups.remove_later, MANY))
            assert len(there(owner)) == MAX_WAITING
    await until(lambda: not there(owner))


async def test_reused_name_gets_a_new_cgroup(owner: Identity, groups: Cgroups) -> None:
    make(owner, "box")
    await groups.remove_later("box")
    async with groups.starting("box"):
        assert there(owner) == set()
        make(owner, "box")
    assert groups.names() == {"box"}
    await groups.remove("box")


async def test_late_removal_spares_reused_name(owner: Identity, groups: Cgroups) -> None:
    make(owner, "box", "other")
    released = threading.Event()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as threads:
        loop.set_default_executor(threads)
        try:
            busy = loop.run_in_executor(None, released.wait)
            await groups.remove_later("box")
            await until(lambda: threads._work_queue.qsize() > 0)
            async with groups.starting("box"):
                make(owner, "box")
                released.set()
                await busy
                await asyncio.to_thread(there, owner)  # after what had come late
                assert there(owner) == {"box", "other"}
        finally:
            released.set()
    await groups.remove("box")
    await groups.remove("other")


async def test_removal_stops_with_owner(owner: Identity, groups: Cgroups) -> None:
    make(owner, "box")
    before = asyncio.all_tasks()
    await groups.remove_later("box")
    assert len(asyncio.all_tasks()) > len(before)
    await groups.remove_group()
    assert asyncio.all_tasks() == before


async def test_owner_removes_all_cgroups(owner: Identity, groups: Cgroups) -> None:
    make(owner, *MANY)
    for name in MANY:
        await groups.remove_later(name)
    await groups.remove_group()
    assert there(owner) == set()

"""Owners whose state directory a reaper cannot see: hidden by other mounts, deleted, or another at the same path."""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from sandboxes import SandboxSpec
from sandboxes.cgroups.cgroups import Cgroups, find_hierarchies
from sandboxes.ownership.labels import container_name
from sandboxes.ownership.owner import Identity, Owner, group_of, is_dead_by_trace
from sandboxes.toolserver.toolbox import Toolbox
from tests.support.outside import EitherRuntime
from tests.support.owner_process import OwnerProcess
from tests.support.sandboxes.conformance import WAIT_S, living, text
from tests.support.services import needs_root

pytestmark = [pytest.mark.docker, needs_root]

REAPER = """
import asyncio, sys
from pathlib import Path
from sandboxes.runtimes.reaper import reap
from sandboxes.docker_engine.api import Engine

async def main(state_dir):
    engine = Engine()
    await engine.connect()
    try:
        await reap(engine, Path(state_dir))
    finally:
        await engine.close()

asyncio.run(main(sys.argv[1]))
"""


def reap_where_hidden(hidden: Path) -> None:
    """Another farm's reaper, which finds an empty directory at ``hidden``."""
    script = 'mount -t tmpfs hidden "$0" && exec "$1" -c "$2" "$0"'
    command = ["unshare", "--mount", "sh", "-ec", script, str(hidden), sys.executable, REAPER]
    subprocess.run(command, check=True)


async def test_living_owner_in_unseen_state_dir_is_kept(
    either_runtime: EitherRuntime, state_dir: Path, test_image: str
) -> None:
    async with either_runtime.scope(SandboxSpec(test_image)) as sandbox:
        await asyncio.to_thread(reap_where_hidden, state_dir)
        assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
        assert await living(either_runtime) == {sandbox.id}


def is_there(client: docker.DockerClient, owner: Identity, sandbox_id: str) -> bool:
    named = client.containers.list(all=True, filters={"name": container_name(sandbox_id)})
    return bool(named) or sandbox_id in Cgroups(find_hierarchies(), group_of(owner)).names()


async def test_same_path_with_other_seal_is_another_owner(
    either_runtime: EitherRuntime,
    docker_client: docker.DockerClient,
    tmp_path: Path,
    toolbox: Toolbox,
    test_image: str,
) -> None:
    """What was there is removed when its grace is over, and takes nothing of who is there now with it."""
    place = tmp_path / "place"
    before = await OwnerProcess.start(either_runtime.name, place, toolbox)
    there = await before.told("create", test_image, [])
    await before.kill()
    missed = Identity.here(place, "agent")
    assert is_there(docker_client, missed, there)
    place.rename(tmp_path / "deleted")  # at once: reapers of other tests may look at it just now
    shutil.rmtree(tmp_path / "deleted")
    runtime = await type(either_runtime).open(state_dir=place, owner="agent", toolbox=toolbox)
    try:
        async with runtime.scope(SandboxSpec(test_image)) as sandbox:
            assert await living(runtime) == {sandbox.id}
            await runtime.reap()
            assert is_there(docker_client, missed, there)
            (place / "owners" / ".missed" / f"{missed.name}-{missed.seal}" / "died").write_text("-301")
            await runtime.reap()
            assert not is_there(docker_client, missed, there)
            assert await living(runtime) == {sandbox.id}
            assert text(await sandbox.exec(["echo", "on"], timeout_s=WAIT_S)) == "on\n"
    finally:
        await runtime.close()


def test_kernel_lock_list_proves_life(tmp_path: Path) -> None:
    asker, place = tmp_path / "asker", tmp_path / "place"
    owner = Owner.claim(place)
    assert not is_dead_by_trace(owner.identity, [owner.trace], asker)
    os.rename(place, tmp_path / "elsewhere")
    assert not owner.identity.is_state_dir_visible
    assert not is_dead_by_trace(owner.identity, [owner.trace], asker)
    os.rename(tmp_path / "elsewhere", place)
    owner.release()
    assert is_dead_by_trace(owner.identity, [owner.trace], asker)
    assert list((asker / "owners" / ".missed").iterdir()) == []


def test_grace_applies_to_unseen_owners(tmp_path: Path) -> None:
    owner = Owner.claim(tmp_path / "place", "agent", grace_s=300.0)
    owner.release()
    asker = tmp_path / "asker"
    told = [is_dead_by_trace(owner.identity, [owner.trace], asker, now_s=now_s) for now_s in (1000.0, 1299.0, 1301.0)]
    assert told == [False, False, True]


def test_unknown_owner_is_kept_until_reboot(tmp_path: Path) -> None:
    owner = Owner.claim(tmp_path / "place")
    owner.release()
    boot, grace, pids, lock = owner.trace.split(" ")
    assert lock
    unlisted = f"{boot} {grace} {pids} "
    assert not is_dead_by_trace(owner.identity, [unlisted], tmp_path / "asker")
    assert is_dead_by_trace(owner.identity, [unlisted.replace(boot, "another")], tmp_path / "asker")
    ask = (
        "import sys; from pathlib import Path; "
        "from sandboxes.ownership.owner import Identity, is_dead_by_trace as dead; "
        "print(dead(Identity(Path('/nowhere'), 'one', 'seal'), sys.argv[2:], Path(sys.argv[1])))"
    )
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ask, str(tmp_path), owner.trace]
    assert subprocess.run(inside, check=True, capture_output=True, text=True).stdout == "False\n"


def test_reused_lock_inode_does_not_prove_life(tmp_path: Path) -> None:
    """One of the asker's own, that is: of another's nobody can tell."""
    asker = Owner.claim(tmp_path / "asker", "agent")
    other = Owner.claim(tmp_path / "other")
    try:
        deleted = Identity(tmp_path / "deleted", "agent", "0" * 32)
        assert is_dead_by_trace(deleted, [asker.trace], asker.state_dir)
        assert not is_dead_by_trace(deleted, [other.trace], asker.state_dir)
        moved = replace(asker.identity, state_dir=tmp_path / "moved")
        assert not is_dead_by_trace(moved, [asker.trace], asker.state_dir)
    finally:
        asker.release()
        other.release()


def test_owner_claimed_before_seal_loss_lives(tmp_path: Path) -> None:
    owner = Owner.claim(tmp_path)
    (tmp_path / "owners" / ".seal").unlink()
    (tmp_path / "owners" / "stray").touch()
    asker = Owner.claim(tmp_path)
    try:
        assert not owner.identity.is_state_dir_visible
        assert not is_dead_by_trace(owner.identity, [owner.trace], tmp_path)
    finally:
        asker.release()
        owner.release()

"""The disk: all its bytes, all its inodes, and trees that take for ever to walk and to remove."""

import contextlib
import errno

import pytest

from sandboxes import PathError
from tests.attacks.machine.conftest import ANSWER_S, SMALL, Scene
from tests.support.sandboxes.conformance import refusal, text

MIB = 2**20


@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_full_disk_affects_only_the_attacker(after_an_attack: Scene) -> None:
    """Docker bounds files alone."""
    attacker = after_an_attack.attacker
    full = await after_an_attack.attack("for i in 1 2 3; do dd if=/dev/urandom of=/srv/$i bs=1M count=60; done")
    assert b"uota" in full.stderr.head
    assert sum([(await attacker.stat(f"/srv/{i}")).size for i in (1, 2)]) <= SMALL.disk_mib * MIB
    assert await refusal(attacker.write_file("/srv/more", b"x" * MIB)) == errno.EDQUOT
    flood = await attacker.exec(["seq", "200000"], output_limit=1000, timeout_s=ANSWER_S)
    assert (flood.exit_code, flood.stdout.elided) == (0, 1288895 - 1000)
    await attacker.remove_path("/srv/1")
    await attacker.write_file("/srv/more", b"x" * MIB)


async def test_file_size_is_limited(after_an_attack: Scene) -> None:
    for command in ("dd if=/dev/zero of=/srv/big bs=1M count=1000", "dd if=/dev/zero of=/srv/big bs=1 count=1 seek=1G"):
        assert (await after_an_attack.attack(command)).exit_code != 0
        assert (await after_an_attack.attacker.stat("/srv/big")).size <= SMALL.file_size_mib * MIB


async def test_many_sparse_files_take_little_space(after_an_attack: Scene) -> None:
    sparse = "for i in $(seq 1000); do : > /srv/$i; dd if=/dev/zero of=/srv/$i bs=1 count=1 seek=60M 2>/dev/null; done"
    assert (await after_an_attack.attack(sparse)).exit_code == 0
    assert len(await after_an_attack.attacker.walk("/srv")) == 1000
    held_kib = text(await after_an_attack.attack("ls -s /srv | awk '{ sum += $1 } END { print sum }'"))
    assert int(held_kib) < 64 * 1000, "of 60 MiB each"


async def test_many_files_do_not_harm_others(after_an_attack: Scene) -> None:
    made = await after_an_attack.attack("probe crowd /srv/crowd 50000", timeout_s=600)
    assert made.exit_code == 0, made
    assert int(text(made)) == 50_000


@pytest.mark.slow
@pytest.mark.parametrize("either_runtime", ["oci"], indirect=True)
async def test_disk_limit_bounds_number_of_files(after_an_attack: Scene) -> None:
    """A million is what Docker's disk would take, in minutes, and minutes more to be rid of them."""
    made = await after_an_attack.attack("probe crowd /srv/crowd 1000000", timeout_s=600)
    assert made.exit_code == 0, made
    assert int(text(made)) < 1_000_000


async def test_deep_tree_can_be_removed(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    assert text(await after_an_attack.attack("probe dig /srv/deep 3000")) == "3000\n"
    assert await refusal(attacker.walk("/srv")) == errno.ENAMETOOLONG
    await attacker.remove_path("/srv/deep")
    assert await refusal(attacker.stat("/srv/deep")) == errno.ENOENT


async def test_deep_tree_is_removed_with_its_sandbox(after_an_attack: Scene) -> None:
    assert text(await after_an_attack.attack("probe dig /srv/deep 3000")) == "3000\n"


@pytest.mark.slow
@pytest.mark.parametrize("either_runtime", ["docker"], indirect=True)
async def test_tree_deeper_than_descriptor_limit_is_removed(after_an_attack: Scene) -> None:
    """Where it may have no more than the usual 20,000. A snapshot's file system does not mind depth."""
    assert text(await after_an_attack.attack("probe dig /srv/deep 25000")) == "25000\n"


async def test_descriptors_run_out_only_for_attacker(after_an_attack: Scene) -> None:
    assert await after_an_attack.hog("files", processes=16) < 16 * SMALL.open_files
    assert text(await after_an_attack.attack("echo on")) == "on\n"


async def test_tree_growing_during_removal_is_removed(after_an_attack: Scene) -> None:
    attacker = after_an_attack.attacker
    await after_an_attack.attack("(while :; do mkdir -p /srv/t/a/b/c; echo > /srv/t/a/b/c/f; done) 2>/dev/null &")
    for _ in range(50):
        with contextlib.suppress(PathError):  # something was there again
            await attacker.remove_path("/srv/t")
    await attacker.kill_all()
    await attacker.remove_path("/srv/t")
    assert await attacker.walk("/srv") == []
